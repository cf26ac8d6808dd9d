package wire

import (
	"slices"

	"github.com/go-json-experiment/json"

	"weir/limits/bucket"
)

// AppendMessage appends what nodes tell each other: a *Report, *States or *Names. (Checks have [AppendRequests] and
// [AppendResults].) Anything else of plain JSON is written as the JSON library does. Invalid UTF-8, which no name has, becomes the
// replacement character in the former, and is an error in the latter.
func AppendMessage(dst []byte, message any) ([]byte, error) {
	switch m := message.(type) {
	case *Report:
		return appendReport(slices.Grow(dst, 128+256*len(m.Debts)+sizeOf(m.States)), m), nil
	case *StateUpdate:
		dst = append(slices.Grow(dst, 32+sizeOf(m.States)), `{"states":`...)
		return append(appendList(dst, m.States, appendNamed), '}'), nil
	}
	text, err := json.Marshal(message)
	return append(dst, text...), err
}

// sizeOf gives what states usually take in a message: to find out that it is more costs as much as to write it.
func sizeOf(states []KeyedState) int {
	size := 300 * len(states)
	for i := range states {
		size += len(states[i].Name) + len(states[i].UniqueKey)
	}
	return size
}

// Unmarshal reads what AppendMessage wrote, or a newer version of it, into an empty message: unknown members are skipped. The
// strings of the message may share memory with text, which must not change as long as they are used. A report may have been used
// before (see [Report.Reset]). The error says what can't be read, and where.
func Unmarshal(text []byte, message any) error {
	s := newScanner(text)
	switch m := message.(type) {
	case *Report:
		if s.report(m); s.end() {
			return nil
		}
		*m = Report{}
	case *StateUpdate:
		if s.states(m); s.end() {
			return nil
		}
		*m = StateUpdate{}
	}
	return json.Unmarshal(text, message)
}

func appendReport(dst []byte, r *Report) []byte {
	dst = appendField(dst, `{"start":`, r.Start)
	dst = appendField(dst, `,"seq":`, r.Seq)
	dst = appendList(append(dst, `,"debts":`...), r.Debts, appendOwed)
	if r.States != nil {
		dst = appendList(append(dst, `,"states":`...), r.States, appendNamed)
	}
	if r.Handed != "" {
		dst = appendText(append(dst, `,"handed":`...), r.Handed)
	}
	return append(dst, '}')
}

func appendList[Item any](dst []byte, items []Item, one func([]byte, *Item) []byte) []byte {
	dst = append(dst, '[')
	for i := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = one(dst, &items[i])
	}
	return append(dst, ']')
}

func appendOwed(dst []byte, o *Debt) []byte {
	dst = appendText(append(dst, `{"name":`...), o.Name)
	dst = appendText(append(dst, `,"unique_key":`...), o.UniqueKey)
	dst = appendField(dst, `,"algorithm":`, int64(o.Algorithm))
	dst = appendField(dst, `,"limit":`, o.Limit)
	dst = appendField(dst, `,"duration":`, o.Duration)
	dst = appendField(dst, `,"age":`, o.Age)
	dst = appendField(dst, `,"hits":`, o.Hits)
	dst = appendUnlessZero(dst, `,"previous":`, o.Previous)
	dst = appendUnlessZero(dst, `,"start":`, o.Start)
	dst = appendUnlessZero(dst, `,"epoch":`, o.Epoch)
	if o.Copy {
		dst = append(dst, `,"keep_copy":true`...)
	}
	return append(dst, '}')
}

func appendNamed(dst []byte, n *KeyedState) []byte {
	dst = appendText(append(dst, `{"name":`...), n.Name)
	dst = appendText(append(dst, `,"unique_key":`...), n.UniqueKey)
	dst = appendSnapshotMembers(append(dst, ','), &n.Snapshot)
	dst = appendUnlessZero(dst, `,"take":`, n.Take)
	return append(dst, '}')
}

func appendUnlessZero(dst []byte, name string, n int64) []byte {
	if n == 0 {
		return dst
	}
	return appendField(dst, name, n)
}

func (s *scanner) report(r *Report) {
	s.eat('{')
	var seen fields
	for n := 0; s.more('}', n); n++ {
		switch s.name() {
		case "start":
			s.once(&seen, 0)
			r.Start = s.integer()
		case "seq":
			s.once(&seen, 1)
			r.Seq = s.integer()
		case "debts":
			s.once(&seen, 2)
			r.Debts = list(s, r.Debts, (*scanner).owed)
		case "states":
			s.once(&seen, 3)
			r.States = list(s, r.States, (*scanner).named)
		case "handed":
			s.once(&seen, 4)
			r.Handed = s.text()
		default:
			s.fail()
		}
	}
}

func (s *scanner) states(m *StateUpdate) {
	s.eat('{')
	var seen fields
	for n := 0; s.more('}', n); n++ {
		switch s.name() {
		case "states":
			s.once(&seen, 0)
			m.States = list(s, m.States, (*scanner).named)
		default:
			s.fail()
		}
	}
}

// list reads a list into the memory of items.
func list[Item any](s *scanner, items []Item, item func(*scanner, *Item)) []Item {
	const usual = 200 // bytes of an item
	items = slices.Grow(items[:0], 1+(len(s.message)-s.at)/usual)
	s.eat('[')
	for s.more(']', len(items)) {
		var zero Item
		items = append(items, zero)
		item(s, &items[len(items)-1])
	}
	return items
}

func (s *scanner) owed(o *Debt) {
	s.eat('{')
	var seen fields
	for n := 0; s.more('}', n); n++ {
		switch s.name() {
		case "name":
			s.once(&seen, 0)
			o.Name = s.text()
		case "unique_key":
			s.once(&seen, 1)
			o.UniqueKey = s.text()
		case "algorithm":
			s.once(&seen, 2)
			o.Algorithm = bucket.Algorithm(s.octet())
		case "limit":
			s.once(&seen, 3)
			o.Limit = s.integer()
		case "duration":
			s.once(&seen, 4)
			o.Duration = s.integer()
		case "age":
			s.once(&seen, 5)
			o.Age = s.integer()
		case "hits":
			s.once(&seen, 6)
			o.Hits = s.integer()
		case "previous":
			s.once(&seen, 7)
			o.Previous = s.integer()
		case "start":
			s.once(&seen, 8)
			o.Start = s.integer()
		case "epoch":
			s.once(&seen, 9)
			o.Epoch = s.integer()
		case "keep_copy":
			s.once(&seen, 10)
			o.Copy = s.truth()
		default:
			s.fail()
		}
	}
}

func (s *scanner) named(n *KeyedState) {
	s.eat('{')
	var seen fields
	for i := 0; s.more('}', i); i++ {
		switch name := s.name(); name {
		case "name":
			s.once(&seen, 11)
			n.Name = s.text()
		case "unique_key":
			s.once(&seen, 12)
			n.UniqueKey = s.text()
		case "take":
			s.once(&seen, 13)
			n.Take = s.integer()
		case "algorithm": // an unknown one as what it is, unlike in an answer to a check
			s.once(&seen, 5)
			n.Algorithm = bucket.Algorithm(s.octet())
		default:
			if !s.snapshotMember(name, &n.Snapshot, &seen) {
				s.fail()
			}
		}
	}
}
