package wire

import "weir/limits/bucket"

// What the members of messages mean to a scanner. json.go says it for all of JSON.

// quickRequests reads a message of requests, if it has the plain form; else dst is as it was.
func quickRequests(dst []bucket.Request, message []byte) (_ []bucket.Request, ok bool) {
	s, items := newScanner(message), len(dst)
	s.openItems()
	for n := 0; s.more(']', n); n++ {
		if n == MaxItems {
			s.fail()
			break
		}
		dst = append(dst, bucket.Request{})
		s.request(&dst[len(dst)-1])
	}
	if !s.closeItems() {
		clear(dst[items:]) // which may share memory with message
		return dst[:items], false
	}
	return dst, true
}

// quickResults does that for results.
func quickResults(dst []bucket.Result, message []byte) (_ []bucket.Result, ok bool) {
	s, items := newScanner(message), len(dst)
	s.openItems()
	for n := 0; s.more(']', n); n++ {
		if n == MaxItems {
			s.fail()
			break
		}
		dst = append(dst, bucket.Result{})
		s.result(&dst[len(dst)-1])
	}
	if !s.closeItems() {
		clear(dst[items:]) // which may share memory with message
		return dst[:items], false
	}
	return dst, true
}

// openItems reads what all messages begin with.
func (s *scanner) openItems() {
	s.eat('{')
	if s.name() != "rate_limits" {
		s.fail()
	}
	s.eat('[')
}

// closeItems reads what all messages end with, and says whether all has been read.
func (s *scanner) closeItems() bool {
	s.eat('}')
	return s.end()
}

// once fails where a member is there twice. Each member of an object has a number.
func (s *scanner) once(seen *fields, field int) {
	if *seen&(1<<field) != 0 {
		s.fail()
	}
	*seen |= 1 << field
}

func (s *scanner) request(r *bucket.Request) {
	r.Hits, r.Limit, r.Duration = 1, absent, absent
	s.eat('{')
	var seen fields
	for n := 0; s.more('}', n); n++ {
		switch s.name() {
		case "name":
			s.once(&seen, 0)
			r.Name = s.text()
		case "unique_key":
			s.once(&seen, 1)
			r.UniqueKey = s.text()
		case "hits":
			s.once(&seen, 2)
			r.Hits = s.integer()
		case "limit":
			s.once(&seen, 3)
			r.Limit = s.integer()
		case "duration":
			s.once(&seen, 4)
			r.Duration = s.integer()
		case "algorithm":
			s.once(&seen, 5)
			r.Algorithm = s.algorithm()
		case "behavior":
			s.once(&seen, 6)
			r.Behavior = s.behavior()
		case "burst":
			s.once(&seen, 7)
			r.Burst = s.integer()
		case "time_zone":
			s.once(&seen, 8)
			r.TimeZone = s.text()
		default:
			s.fail()
		}
	}
}

func (s *scanner) algorithm() bucket.Algorithm {
	if s.peek() == '"' {
		return algorithmOf(s.text())
	}
	return algorithmOfNumber(s.integer())
}

func (s *scanner) behavior() (b bucket.Behavior) {
	switch s.peek() {
	case '"':
		return flagOf(s.text())
	case '[':
		s.at++
		for n := 0; s.more(']', n); n++ {
			b |= flagOf(s.text())
		}
		return b
	}
	return behaviorOfNumber(s.integer())
}

func (s *scanner) result(r *bucket.Result) {
	s.eat('{')
	var seen fields
	for n := 0; s.more('}', n); n++ {
		switch s.name() {
		case "status":
			s.once(&seen, 0)
			var known bool
			if r.Status, known = statusOf(s.text()); !known {
				s.fail()
			}
		case "limit":
			s.once(&seen, 1)
			r.Limit = s.integer()
		case "remaining":
			s.once(&seen, 2)
			r.Remaining = s.integer()
		case "reset_time":
			s.once(&seen, 3)
			r.ResetTime = s.integer()
		case "retry_after":
			s.once(&seen, 4)
			r.RetryAfter = s.integer()
		case "error":
			s.once(&seen, 5)
			r.Error = s.text()
		case "metadata":
			s.once(&seen, 6)
			s.metadata(&r.Metadata)
		case "state":
			s.once(&seen, 7)
			r.State = new(bucket.Snapshot)
			s.snapshot(r.State)
		default:
			s.fail()
		}
	}
}

func (s *scanner) metadata(m *bucket.Metadata) {
	s.eat('{')
	var seen fields
	for n := 0; s.more('}', n); n++ {
		switch s.name() {
		case "owner":
			s.once(&seen, 0)
			m.Owner = s.text()
		case "degraded":
			s.once(&seen, 1)
			m.Degraded = s.text()
		case "reason":
			s.once(&seen, 2)
			m.Reason = s.text()
		case "source":
			s.once(&seen, 3)
			m.Source = s.text()
		default:
			s.fail()
		}
	}
}

func (s *scanner) snapshot(n *bucket.Snapshot) {
	s.eat('{')
	var seen fields
	for i := 0; s.more('}', i); i++ {
		if !s.snapshotMember(s.name(), n, &seen) {
			s.fail()
		}
	}
}

// snapshotMember reads a member of a snapshot, unless that has none of such a name.
func (s *scanner) snapshotMember(name string, n *bucket.Snapshot, seen *fields) bool {
	switch name {
	case "start":
		s.once(seen, 0)
		n.Start = s.integer()
	case "epoch":
		s.once(seen, 1)
		n.Epoch = s.integer()
	case "version":
		s.once(seen, 2)
		n.Version = s.integer()
	case "acked":
		s.once(seen, 3)
		n.Acked = s.integer()
	case "now":
		s.once(seen, 4)
		n.Now = s.integer()
	case "algorithm":
		s.once(seen, 5)
		n.Algorithm = algorithmOfNumber(s.integer())
	case "limit":
		s.once(seen, 6)
		n.Limit = s.integer()
	case "duration":
		s.once(seen, 7)
		n.Duration = s.integer()
	case "age":
		s.once(seen, 8)
		n.Age = s.integer()
	case "used":
		s.once(seen, 9)
		n.Used = s.integer()
	case "rest":
		s.once(seen, 10)
		n.Rest = s.integer()
	default:
		return false
	}
	return true
}
