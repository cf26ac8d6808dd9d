package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Self returns this node's name among members.
//
// With advertise, the value of WEIR_ADVERTISE, that is the member spelled so, or else the one with the same port and an
// address in common. Without, it is the one with the port of listen, the address that this node really listens on, and
// an address that is listen's or, if that is unspecified, one of this machine. If it's none or several, the error tells
// what was compared and what to do.
func Self(ctx context.Context, members []Member, advertise string, listen netip.AddrPort) (name string, err error) {
	f := finder{net.InterfaceAddrs, net.DefaultResolver.LookupNetIP}
	return f.find(ctx, members, advertise, listen)
}

// A finder is where Self has its facts from.
type finder struct {
	interfaces func() ([]net.Addr, error)
	lookup     func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// A candidate is what is known of a member, or of the advertised name.
type candidate struct {
	name  string
	addrs []netip.Addr
	err   error // why there are no addrs
}

// A description is what is compared with the members.
type description struct {
	text string // for errors
	port uint16
	has  func(netip.Addr) bool
}

func (f finder) find(ctx context.Context, members []Member, advertise string, listen netip.AddrPort) (string, error) {
	if len(members) == 0 {
		return "", errors.New("no nodes are listed, so this one isn't")
	}
	lookupCtx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var me description
	var err error
	if advertise != "" {
		h, err := parseHostPort(strings.TrimSpace(advertise))
		if err != nil {
			return "", fmt.Errorf("WEIR_ADVERTISE: %w", err)
		}
		if name := h.String(); Contains(members, name) {
			return name, nil
		}
		me = f.advertised(lookupCtx, h)
	} else if me, err = f.listening(listen); err != nil {
		return "", err
	}
	candidates := f.candidates(lookupCtx, members, me.port)
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return me.choose(candidates)
}

// advertised describes this node by its advertised name.
func (f finder) advertised(ctx context.Context, h hostPort) description {
	me := candidate{name: h.String()}
	me.addrs, me.err = f.resolve(ctx, h.host)
	has := func(a netip.Addr) bool { return slices.Contains(me.addrs, a) }
	return description{"WEIR_ADVERTISE is " + me.String(), h.port, has}
}

// listening describes this node by what it listens on.
func (f finder) listening(listen netip.AddrPort) (description, error) {
	own, err := f.own(listen.Addr())
	if err != nil {
		return description{}, err
	}
	// All of 127.0.0.0/8 is this machine's, and Debian gives the machine's name 127.0.1.1; but the interface has one of
	// them only.
	everywhere := isAny(listen.Addr())
	has := func(a netip.Addr) bool { return slices.Contains(own, a) || everywhere && a.IsLoopback() }
	text := fmt.Sprintf("this node listens on port %d of %s", listen.Port(), enumerate(own, netip.Addr.String))
	return description{text, listen.Port(), has}, nil
}

// choose returns the name of the one candidate that fits.
func (d *description) choose(candidates []candidate) (name string, err error) {
	var matches []candidate
	for _, c := range candidates {
		if slices.ContainsFunc(c.addrs, d.has) {
			matches = append(matches, c)
		}
	}
	what, choice := "no listed node is this one", candidates
	switch {
	case len(matches) == 1:
		return matches[0].name, nil
	case len(matches) > 1:
		what, choice = fmt.Sprintf("%d listed nodes could be this one", len(matches)), matches
	}
	return "", fmt.Errorf("%s: %s; listed are %s; set WEIR_ADVERTISE to one of %s", what, d.text,
		enumerate(candidates, candidate.String), enumerate(choice, func(c candidate) string { return c.name }))
}

// candidates returns a candidate for each member, with addresses if it has that port.
func (f finder) candidates(ctx context.Context, members []Member, port uint16) []candidate {
	candidates := make([]candidate, len(members))
	inParallel(len(members), func(i int) {
		c, m := &candidates[i], members[i]
		c.name = m.Name
		host, p, err := net.SplitHostPort(m.Name)
		if err != nil || p != strconv.Itoa(int(port)) {
			return
		}
		if !m.Resolved && len(m.Addrs) == 0 {
			c.addrs, c.err = f.resolve(ctx, host)
			return
		}
		for _, a := range m.Addrs {
			c.addrs = append(c.addrs, plainAddr(a.Addr()))
		}
		if len(c.addrs) == 0 {
			c.err = errors.New("no address known")
		}
	})
	return candidates
}

// own returns the addresses that a listener at listen has.
func (f finder) own(listen netip.Addr) ([]netip.Addr, error) {
	if !isAny(listen) {
		return []netip.Addr{plainAddr(listen)}, nil
	}
	interfaces, err := f.interfaces()
	if err != nil {
		return nil, fmt.Errorf("finding this machine's addresses: %w", err)
	}
	var own []netip.Addr
	for _, i := range interfaces {
		if ipNet, ok := i.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(ipNet.IP); ok {
				own = append(own, plainAddr(a))
			}
		}
	}
	return own, nil
}

// resolve returns the addresses of a host, which may be an address itself. Localhost isn't left to the system, which
// may know only one of its two addresses.
func (f finder) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{plainAddr(a)}, nil
	}
	if host == "localhost" {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	addrs, err := f.lookup(ctx, "ip", host)
	for i, a := range addrs {
		addrs[i] = plainAddr(a)
	}
	return addrs, err
}

// isAny reports whether a listener at a takes connections to any address of this machine.
func isAny(a netip.Addr) bool { return !a.IsValid() || a.Unmap().IsUnspecified() }

// plainAddr returns a in the form in which addresses from different sources can be compared.
func plainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// String returns the name and, where they say more, the addresses.
func (c candidate) String() string {
	if c.err != nil {
		return fmt.Sprintf("%s (%v)", c.name, c.err)
	}
	addrs := enumerate(c.addrs, netip.Addr.String)
	if host, _, _ := net.SplitHostPort(c.name); addrs == "" || addrs == host {
		return c.name
	}
	return fmt.Sprintf("%s (%s)", c.name, addrs)
}

// enumerate joins the first of many items, so that an error stays readable.
func enumerate[T any](items []T, text func(T) string) string {
	const most = 10
	var parts []string
	for _, item := range items[:min(most, len(items))] {
		parts = append(parts, text(item))
	}
	if more := len(items) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, ", ")
}
