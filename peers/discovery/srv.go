package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	lookupTimeout = 3 * time.Second        // for the list, and then for all addresses together
	dnsDial       = time.Second            // of it for a connection, which leaves time for the system's next server
	lookupsAtOnce = 16                     // for the addresses
	firstRetry    = 250 * time.Millisecond // after the first lookup that found nothing, doubled after each further one
	slowestRetry  = 2 * time.Second        // until there is a list
)

// SRV looks up the members by DNS: a service record each, with a target host and a port, and then the targets'
// addresses. It asks over TCP only, because Consul, for one, shortens its answers over UDP and doesn't say so.
//
// It remembers its last list and the addresses in it. It serves one Lookup at a time.
type SRV struct {
	name    string // without the final dot
	server  string // host:port, or "" for the system's
	timeout time.Duration

	list  map[hostPort]bool      // the targets of the last list that counted
	known map[string]*hostAnswer // their last addresses, by host
}

// NewSRV makes an SRV that asks server, a host:port or a host alone for port 53, for the records of name. If server is
// empty it asks those of the system. The search list of the system never applies: name is taken as absolute.
func NewSRV(name, server string) *SRV {
	if server != "" {
		host, port, err := net.SplitHostPort(server)
		if err != nil { // no port, or an IPv6 address without brackets
			host = strings.Trim(server, "[]")
		}
		server = net.JoinHostPort(host, cmp.Or(port, "53"))
	}
	return &SRV{name: strings.TrimSuffix(name, "."), server: server, timeout: lookupTimeout}
}

// Name returns the name of the records, without a final dot.
func (s *SRV) Name() string { return s.name }

// Lookup asks for the list. A list that is not nil counts; an error is for an operator to see; there may be both.
//
//   - No answer or one without usable records: no list, an error. The last list stands.
//   - An answer that is not whole, because some of it is malformed or cut off: its good records together with the last
//     list, and an error. It may show which nodes are there, not which have gone.
//   - Any other answer counts as it is, also when it is shorter than the last one.
//
// A target whose address isn't found keeps its last addresses while the answer lists it. If it has none it is listed
// without, for the ring must be the same everywhere. Both come with an error. All members are Resolved.
func (s *SRV) Lookup(ctx context.Context) (members []Member, err error) {
	list, whole, err := s.targets(ctx)
	if len(list) == 0 {
		return nil, err
	}
	if !whole {
		maps.Copy(list, s.list)
	}
	known, missing := s.addresses(ctx, list)
	if err := ctx.Err(); err != nil {
		return nil, err // what wasn't found says nothing then
	}
	s.list, s.known = list, known
	for t := range list {
		members = append(members, Member{Name: t.String(), Addrs: known[t.host].dialled(t.port), Resolved: true})
	}
	sortMembers(members)
	if err != nil && missing != nil {
		return members, fmt.Errorf("%w; %w", err, missing)
	}
	return members, cmp.Or(err, missing)
}

// targets asks for the service records. An empty list comes with an error.
func (s *SRV) targets(ctx context.Context) (list map[hostPort]bool, whole bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var truncated atomic.Bool
	_, records, err := s.resolver(ctx, &truncated).LookupSRV(ctx, "", "", s.name+".")
	if records == nil {
		return nil, false, s.explain(ctx, err)
	}
	list = make(map[hostPort]bool)
	unusable := 0
	for _, r := range records {
		host := strings.ToLower(strings.TrimSuffix(r.Target, "."))
		if host == "" || r.Port == 0 { // a target of "." is how to say that there is no such service
			unusable++
			continue
		}
		list[hostPort{host, r.Port}] = true
	}
	switch {
	case err != nil: // the resolver left out the records with such targets
		err = s.failure("some targets in the answer are no host names")
	case truncated.Load():
		err = s.failure("the answer is cut short, even over TCP")
	case unusable > 0: // well-formed, and the same for all nodes, so the answer is whole without them
		return list, true, s.failure(fmt.Sprintf("%d of %d records have no target or no port", unusable, len(records)))
	default:
		return list, true, nil
	}
	return list, false, err
}

// A hostAnswer is what is known of a target: its addresses of IPv4 and of IPv6. They are asked for one by one, so that
// a failure with one of them doesn't lose the addresses of the other.
type hostAnswer [2]struct {
	addrs []netip.Addr
	err   *net.DNSError
}

// addresses asks for the addresses of all targets, by host. The error tells of those without an answer.
func (s *SRV) addresses(ctx context.Context, list map[hostPort]bool) (map[string]*hostAnswer, error) {
	answers := s.askHosts(ctx, list)
	var missing []string
	for host, a := range answers {
		if !a.found() {
			missing = append(missing, host)
		}
		if last := s.known[host]; last != nil {
			a.keep(last)
		}
	}
	if len(missing) == 0 {
		return answers, nil
	}
	err := answers[slices.Min(missing)].failure()
	return answers, fmt.Errorf("no address for %d of %d targets: %w", len(missing), len(answers), err)
}

func (s *SRV) askHosts(ctx context.Context, list map[hostPort]bool) map[string]*hostAnswer {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	r := s.resolver(ctx, new(atomic.Bool))
	answers := make(map[string]*hostAnswer)
	for t := range list {
		answers[t.host] = new(hostAnswer)
	}
	// A map has no order, so with many targets and a slow server it isn't always the same ones whose turn comes too late.
	hosts := slices.Collect(maps.Keys(answers))
	inParallel(2*len(hosts), func(i int) {
		host, a := hosts[i/2], &answers[hosts[i/2]][i%2]
		addrs, err := r.LookupNetIP(ctx, [...]string{"ip4", "ip6"}[i%2], host+".")
		if err != nil {
			a.err = s.explain(ctx, err)
			return
		}
		a.addrs = addrs
	})
	return answers
}

func (a *hostAnswer) found() bool { return a[0].err == nil || a[1].err == nil }

// failure returns why nothing was found: rather that the server failed than that it has no such addresses.
func (a *hostAnswer) failure() *net.DNSError {
	if a[0].err.IsNotFound {
		return a[1].err
	}
	return a[0].err
}

// keep takes over the last addresses of a kind that wasn't found, unless those of the other kind were and the server
// says that there are none of this.
func (a *hostAnswer) keep(last *hostAnswer) {
	for i := range a {
		if err := a[i].err; err != nil && !(a.found() && err.IsNotFound) {
			a[i].addrs = last[i].addrs
		}
	}
}

// dialled returns where to dial, sorted.
func (a *hostAnswer) dialled(port uint16) []netip.AddrPort {
	var addrs []netip.AddrPort
	for _, addr := range slices.Concat(a[0].addrs, a[1].addrs) {
		addrs = append(addrs, netip.AddrPortFrom(addr.Unmap(), port))
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	return slices.Compact(addrs)
}

// resolver returns a resolver for one lookup, whose connections all end with ctx. It is Go's own, as C's takes no
// server. It sets truncated by the last answer.
func (s *SRV) resolver(ctx context.Context, truncated *atomic.Bool) *net.Resolver {
	dialer := net.Dialer{Timeout: dnsDial}
	dial := func(dialCtx context.Context, _, address string) (net.Conn, error) {
		c, err := dialer.DialContext(dialCtx, "tcp", cmp.Or(s.server, address))
		if err != nil {
			return nil, err
		}
		// The resolver lets some of its work run on without the deadline of its caller, and doesn't stop to read when
		// its caller is cancelled.
		stop := context.AfterFunc(ctx, func() { c.Close() })
		return &dnsConn{Conn: c, stop: stop, truncated: truncated}, nil
	}
	return &net.Resolver{PreferGo: true, Dial: dial}
}

// A dnsConn is a connection for one question, and notes whether its answer is flagged as truncated. The resolver
// ignores that flag over TCP.
type dnsConn struct {
	net.Conn
	stop      func() bool
	truncated *atomic.Bool
	read      int // bytes, so far
}

func (c *dnsConn) Read(b []byte) (int, error) {
	const flags = 4 // the offset of the byte with the flag: length and id, two bytes each, come first
	n, err := c.Conn.Read(b)
	if i := flags - c.read; 0 <= i && i < n {
		c.truncated.Store(b[i]&2 != 0)
	}
	c.read += n
	return n, err
}

func (c *dnsConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

func (s *SRV) failure(why string) *net.DNSError {
	return &net.DNSError{Err: why, Name: s.name, Server: s.server}
}

// explain names the server that was really asked: the resolver believes it was the system's. ctx is the lookup's.
func (s *SRV) explain(ctx context.Context, err error) *net.DNSError {
	e := s.failure(err.Error())
	if dnsErr, ok := errors.AsType[*net.DNSError](err); ok {
		*e = *dnsErr
		e.Name = strings.TrimSuffix(e.Name, ".")
		e.Server = cmp.Or(s.server, e.Server)
	} else if addrErr, ok := errors.AsType[*net.AddrError](err); ok {
		// The hosts file has the host, but not with an address of the kind that was asked for.
		*e = net.DNSError{Err: addrErr.Err, Name: strings.TrimSuffix(addrErr.Addr, "."), IsNotFound: true}
	}
	switch {
	case ctx.Err() != nil || e.IsTimeout: // it depends on chance which error that led to
		e.Err = "no answer in time"
	case e.IsNotFound && e.Name == s.name:
		e.Err = "no service records"
	}
	return e
}

// inParallel calls f for each number below n, in order, a bounded number of them at a time, and returns when all have.
func inParallel(n int, f func(i int)) {
	slots := make(chan struct{}, lookupsAtOnce)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			f(i)
			<-slots
		})
	}
	wg.Wait()
}

// Watch looks up the members until ctx ends: at once, soon again until there is a list in which set finds this node,
// and then at intervals of every, which must be positive, or a little less. It passes each list to set, also when
// nothing changed, and each error to failed; what came with the end of ctx goes to neither. The lookup is as
// [SRV.Lookup].
func Watch(ctx context.Context, every time.Duration, lookup func(context.Context) ([]Member, error),
	set func([]Member) bool, failed func(error)) {
	retry := firstRetry
	listed := false
	for {
		members, err := lookup(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failed(err)
		}
		if len(members) > 0 {
			listed = set(members) || listed
		}
		wait := every
		if !listed {
			wait = min(retry, every)
			retry = min(2*retry, slowestRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait - rand.N(wait/8+1)): // nodes that started together need not ask together
		}
	}
}
