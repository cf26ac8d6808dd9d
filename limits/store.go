package limits

import (
	"unsafe"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"weir/limits/bucket"
)

// A store holds the states of one shard, in the order in which they were used last, more or less: one in the newer half
// is left where it is, since bringing it to the front would touch the memory of three others. So what is the oldest in
// a full store has not been used for half of it.
type store struct {
	lru   simplelru.LRU[string, *record] // not a pointer, which would be one more to follow
	moves uint32                         // how often something came to the front
	near  uint32                         // so many may have come to the front since, and a record still counts as new
}

// A record is a state with its id, whose bytes follow it. It is one object without pointers, which the garbage
// collector need not look into, and whose state lies beside the id that is compared on the way to it.
type record struct {
	bucket.State
	moved uint32 // what moves was when it came to the front
	size  uint16 // of the id
	place uint16 // in the expiry index
}

func newRecord(id string, st bucket.State) *record {
	const head = int(unsafe.Sizeof(record{}))
	memory := make([]byte, head+len(id)) // too large to share memory with others, and so aligned
	copy(memory[head:], id)
	r := (*record)(unsafe.Pointer(unsafe.SliceData(memory)))
	r.State, r.size = st, uint16(len(id))
	return r
}

// id returns the id, which lives as long as it is used.
func (r *record) id() string {
	return unsafe.String((*byte)(unsafe.Add(unsafe.Pointer(r), unsafe.Sizeof(*r))), int(r.size))
}

func newStore(size int) store {
	lru, err := simplelru.NewLRU[string, *record](size, nil)
	if err != nil {
		panic(err) // size is positive
	}
	return store{lru: *lru, near: uint32(size / 2)}
}

// get returns the record of id, which has been used now; nil if there is none.
func (s *store) get(id string) *record {
	r, _ := s.lru.Peek(id)
	if r != nil && s.moves-r.moved > s.near {
		s.renew(r)
	}
	return r
}

// renew makes r the newest.
func (s *store) renew(r *record) {
	s.moves++
	r.moved = s.moves
	s.lru.Get(r.id())
}

// peek is get, but does not count as use.
func (s *store) peek(id []byte) *record {
	r, _ := s.lru.Peek(textOf(id))
	return r
}

// add adds a state, which is the newest then. The id is copied.
func (s *store) add(id string, st bucket.State) *record {
	r := newRecord(id, st)
	s.moves++
	r.moved = s.moves
	s.lru.Add(r.id(), r)
	return r
}

func (s *store) remove(r *record) { s.lru.Remove(r.id()) }

// oldest returns what was used least recently. There must be something.
func (s *store) oldest() *record {
	_, r, _ := s.lru.GetOldest()
	return r
}

// inOrder returns all records, the oldest first.
func (s *store) inOrder() []*record { return s.lru.Values() }

func (s *store) len() int { return s.lru.Len() }

// textOf returns b as a string that shares its memory. b must not be empty.
func textOf(b []byte) string { return unsafe.String(&b[0], len(b)) }
