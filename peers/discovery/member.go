// Package discovery finds the nodes of a cluster, by a fixed list or by DNS, and this node among them. It calls no
// node: what becomes of a list is up to package peers.
package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A Member is one entry of the list of nodes.
type Member struct {
	// Name is host:port as the list spells it, in lower case and without a trailing dot: the node's name in the ring.
	Name string

	// Addrs is where to dial, sorted, IPv4 first.
	Addrs []netip.AddrPort

	// Resolved is set if Addrs is all there is, even if it's empty: the system's resolver may not know the host in Name,
	// or know another one by it. Unless Resolved, Addrs is empty and Name is what to dial.
	Resolved bool
}

// Equal reports whether nothing differs. slices.EqualFunc(a, b, Member.Equal) compares lists: they are sorted by name.
func (m Member) Equal(o Member) bool {
	return m.Name == o.Name && m.Resolved == o.Resolved && slices.Equal(m.Addrs, o.Addrs)
}

// Distant reports whether m may be on another machine.
func (m Member) Distant() bool {
	host, _, _ := net.SplitHostPort(m.Name)
	return host != "localhost" && !net.ParseIP(host).IsLoopback()
}

// Contains reports whether a member has that name.
func Contains(members []Member, name string) bool {
	return slices.ContainsFunc(members, func(m Member) bool { return m.Name == name })
}

// A hostPort is a Member's name, taken apart.
type hostPort struct {
	host string
	port uint16
}

func (h hostPort) String() string { return net.JoinHostPort(h.host, strconv.Itoa(int(h.port))) }

// parseHostPort reads an entry as people write it, and returns it in the spelling that all nodes agree on.
func parseHostPort(entry string) (hostPort, error) {
	host, portText, err := net.SplitHostPort(entry)
	if err != nil {
		why := err.Error()
		if addrErr, ok := errors.AsType[*net.AddrError](err); ok {
			why = addrErr.Err // without the entry, which is said already
		}
		return hostPort{}, fmt.Errorf("%q is not host:port: %s", entry, why)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 {
		return hostPort{}, fmt.Errorf("%q is not host:port: the port must be a number from 1 to 65535", entry)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr = addr.Unmap(); addr.IsUnspecified() {
			return hostPort{}, fmt.Errorf("%q names no node: %s can't be dialled", entry, addr)
		}
		return hostPort{addr.String(), uint16(port)}, nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if !isHostName(host) {
		return hostPort{}, fmt.Errorf("%q is not host:port: %q is neither a name nor an address", entry, host)
	}
	return hostPort{host, uint16(port)}, nil
}

// isHostName reports whether the resolver would ask for host. Digits and dots alone are a mistyped address.
func isHostName(host string) bool {
	name := false
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, c := range label {
			switch {
			case 'a' <= c && c <= 'z', c == '-', c == '_':
				name = true
			case c < '0' || '9' < c:
				return false
			}
		}
	}
	return name && len(host) <= 253
}

// ParseList reads a static list of nodes: host:port, separated by commas. Blanks around entries, empty entries and
// repeated ones are dropped, so the list may come out empty. It is sorted by name. An error names the wrong entry.
func ParseList(list string) ([]Member, error) {
	var members []Member
	for entry := range strings.SplitSeq(list, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		h, err := parseHostPort(entry)
		if err != nil {
			return nil, err
		}
		members = append(members, Member{Name: h.String()})
	}
	sortMembers(members)
	return slices.CompactFunc(members, Member.Equal), nil
}

func sortMembers(members []Member) {
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
}
