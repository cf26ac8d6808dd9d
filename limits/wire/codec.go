package wire

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"weir/limits/bucket"
)

// ReadRequests reads a message, {"rate_limits": [...]}, and appends its items to dst. Their strings may share memory
// with message, which must not change as long as they are used. The error tells what can't be read and where; then
// nothing is appended.
//
// It is strict about form: exact names, each once, plain integers of 64 bits, no null, valid UTF-8, nothing after the
// message, 1 to MaxItems items. Values that are well formed but wrong (an unknown algorithm, a limit that is missing)
// are for [bucket.Query.Prepare] to judge, item by item.
func ReadRequests(dst []bucket.Request, message []byte) ([]bucket.Request, error) {
	items := len(dst)
	dst, err := readItems(&requests, dst, missing, message, false)
	if err == nil && len(dst) == items {
		err = errors.New("rate_limits: required, must hold at least one item")
	}
	return dst, err
}

// ReadPeerRequests is ReadRequests for a message from another node. That may be newer, so unknown fields are skipped,
// and it may only want to know whether this node answers, so there may be no items.
func ReadPeerRequests(dst []bucket.Request, message []byte) ([]bucket.Request, error) {
	return readItems(&requests, dst, missing, message, true)
}

// ReadPeerResults reads the answer to a message of requests, and appends its items to dst. Their strings may share
// memory with message. Unknown fields are skipped.
func ReadPeerResults(dst []bucket.Result, message []byte) ([]bucket.Result, error) {
	return readItems(&results, dst, bucket.Result{}, message, true)
}

// readItems reads {"rate_limits": [...]}, the frame of checks and their answers.
func readItems[T any](o *object, dst []T, empty T, message []byte, lenient bool) ([]T, error) {
	s := scanner{message: stringOf(message), lenient: lenient}
	all := dst
	var seen seen
	s.eat('{')
	for n := 0; s.more('}', n); n++ {
		if s.name() != "rate_limits" {
			s.unknown()
			continue
		}
		if seen.again(0) {
			s.fail()
		}
		s.eat('[')
		for n := 0; s.more(']', n); n++ {
			if n == MaxItems {
				s.fail()
				break
			}
			all = append(all, empty)
			o.scan(&s, unsafe.Pointer(&all[len(all)-1]))
		}
	}
	if s.end() {
		return all, nil
	}
	clear(all[len(dst):]) // which may share memory with message
	return dst, newReplay(message, lenient).items(o)
}

// AppendRequests appends the message of some requests, which are valid.
func AppendRequests(dst []byte, all []bucket.Request) []byte {
	dst = append(dst, `{"rate_limits":[`...)
	for i := range all {
		dst = append(requests.append(dst, unsafe.Pointer(&all[i])), ',')
	}
	return endItems(dst)
}

// AppendResults appends the message that answers a message of requests.
func AppendResults(dst []byte, all []bucket.Result) []byte {
	dst = append(dst, `{"rate_limits":[`...)
	for i := range all {
		o := failures
		if status := all[i].Status; status == bucket.StatusOK || status == bucket.StatusOverLimit {
			o = verdicts
		}
		dst = append(o.append(dst, unsafe.Pointer(&all[i])), ',')
	}
	return endItems(dst)
}

// endItems ends a message of items, each with a comma behind it.
func endItems(dst []byte) []byte {
	if dst[len(dst)-1] == ',' {
		dst = dst[:len(dst)-1]
	}
	return append(dst, "]}\n"...)
}

// AppendMessage appends what nodes tell each other: a *Report, *StateUpdate, *TakeRequest, *KeyedState or an empty
// struct, which is an empty object. (Checks have [AppendRequests] and [AppendResults].) Of other types it returns an
// error. Invalid UTF-8, which no name has, becomes the replacement character.
func AppendMessage(dst []byte, message any) ([]byte, error) {
	switch m := message.(type) {
	case *Report:
		return reports.append(slices.Grow(dst, 128+256*len(m.Debts)+sizeOf(m.States)), unsafe.Pointer(m)), nil
	case *StateUpdate:
		return updates.append(slices.Grow(dst, 32+sizeOf(m.States)), unsafe.Pointer(m)), nil
	case *TakeRequest:
		return takeRequests.append(dst, unsafe.Pointer(m)), nil
	case *KeyedState:
		return states.append(dst, unsafe.Pointer(m)), nil
	case struct{}, *struct{}:
		return append(dst, "{}"...), nil
	}
	return dst, fmt.Errorf("%T is no message", message)
}

// sizeOf returns what states usually take in a message: to find out that it is more costs as much as to write it.
func sizeOf(states []KeyedState) int {
	size := 300 * len(states)
	for i := range states {
		size += len(states[i].Name) + len(states[i].UniqueKey)
	}
	return size
}

// Unmarshal reads what AppendMessage wrote, or a newer version of it, into an empty message: unknown members are
// skipped. The strings of the message may share memory with text, which must not change as long as they are used. A
// report may have been used before (see [Report.Reset]). The error tells what can't be read, and where; then the
// message is empty.
func Unmarshal(text []byte, message any) error {
	switch m := message.(type) {
	case *Report:
		return read(&reports, m, text)
	case *StateUpdate:
		return read(&updates, m, text)
	case *TakeRequest:
		return read(&takeRequests, m, text)
	case *KeyedState:
		return read(&states, m, text)
	case *struct{}:
		return read(&nothing, m, text)
	}
	return fmt.Errorf("%T is no message", message)
}

func read[T any](o *object, to *T, text []byte) error {
	s := scanner{message: stringOf(text), lenient: true}
	if o.scan(&s, unsafe.Pointer(to)); s.end() {
		return nil
	}
	var empty T
	*to = empty // which may share memory with text
	r := newReplay(text, true)
	o.replay(r)
	return r.end()
}
