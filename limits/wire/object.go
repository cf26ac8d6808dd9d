package wire

import (
	"slices"
	"strconv"
	"unsafe"

	"weir/limits/bucket"
)

// An object describes the JSON objects of one type. It is all that reading and writing them needs. Values are given by
// their addresses; they must be of the type that the fields were made for.
type object struct{ fields []field }

// A field is one member of an object.
type field struct {
	name     string   // as it is written behind another: `,"name":`
	padded   [16]byte // the same in a size that is copied without a call
	start    pattern  // of the member, without the comma
	kind     kind
	omitZero bool    // it is written only if it is not zero
	offset   uintptr // of its value in that of the object
	object   *object // of inner, optional and list
	memory   *memory // of optional and list
}

// A memory has what optional and list need to know of their type.
type memory struct {
	create   func(at unsafe.Pointer) unsafe.Pointer                    // makes the struct of optional, or one more of list
	reserve  func(at unsafe.Pointer, count int)                        // makes room in list
	elements func(at unsafe.Pointer) (first unsafe.Pointer, count int) // of list
	size     uintptr                                                   // of each of them
}

// A kind is how a value is written in JSON.
type kind uint8

const (
	number    kind = iota // an int64
	text                  // a string
	truth                 // a bool
	algorithm             // a bucket.Algorithm: its name or its number
	octet                 // a bucket.Algorithm: its number, even an unknown one
	behavior              // a bucket.Behavior: a name, a list of names, or the sum of flags
	status                // a bucket.Status: its name
	inner                 // a struct
	optional              // a pointer to a struct, or nil
	list                  // a slice of structs
)

// member describes a value by its name and where it is in a T. The kind follows from its type.
func member[T, V any](name string, at func(*T) *V) field {
	var t T
	f := field{name: `,"` + name + `":`, offset: uintptr(unsafe.Pointer(at(&t))) - uintptr(unsafe.Pointer(&t))}
	if copy(f.padded[:], f.name) < len(f.name) {
		panic("wire: " + name + " is too long")
	}
	f.start = newPattern(f.name[1:])
	switch any((*V)(nil)).(type) {
	case *int64:
		f.kind = number
	case *string:
		f.kind = text
	case *bool:
		f.kind = truth
	case *bucket.Algorithm:
		f.kind = algorithm
	case *bucket.Behavior:
		f.kind = behavior
	case *bucket.Status:
		f.kind = status
	default:
		f.kind = inner
	}
	return f
}

// innerOf describes a struct in a struct.
func innerOf[T, U any](name string, o *object, at func(*T) *U) field {
	f := member(name, at)
	f.object = o
	return f
}

// optionalOf describes a pointer to a struct.
func optionalOf[T, U any](name string, o *object, at func(*T) **U) field {
	f := innerOf(name, o, at)
	f.kind = optional
	f.memory = &memory{create: func(at unsafe.Pointer) unsafe.Pointer {
		u := new(U)
		*(**U)(at) = u
		return unsafe.Pointer(u)
	}}
	return f.unlessZero()
}

// listOf describes a list of structs.
func listOf[T, U any](name string, o *object, at func(*T) *[]U) field {
	f := innerOf(name, o, at)
	f.kind = list
	f.memory = &memory{
		create: func(at unsafe.Pointer) unsafe.Pointer {
			var zero U
			all := append(*(*[]U)(at), zero)
			*(*[]U)(at) = all
			return unsafe.Pointer(&all[len(all)-1])
		},
		reserve: func(at unsafe.Pointer, count int) { *(*[]U)(at) = slices.Grow(*(*[]U)(at), count) },
		elements: func(at unsafe.Pointer) (unsafe.Pointer, int) {
			all := *(*[]U)(at)
			return unsafe.Pointer(unsafe.SliceData(all)), len(all)
		},
		size: unsafe.Sizeof(*new(U)),
	}
	return f
}

// unlessZero has a value left out if it is zero.
func (f field) unlessZero() field {
	f.omitZero = true
	return f
}

// embedded returns the fields of a U as those of a T that has one. Their algorithm is a number.
func embedded[T, U any](o *object, at func(*T) *U) []field {
	fields, start := slices.Clone(o.fields), member("", at).offset
	for i := range fields {
		fields[i].offset += start
		if fields[i].kind == algorithm {
			fields[i].kind = octet
		}
	}
	return fields
}

// without returns o without some fields.
func (o *object) without(names ...string) *object {
	return &object{slices.DeleteFunc(slices.Clone(o.fields), func(f field) bool {
		return slices.Contains(names, f.name[2:len(f.name)-2])
	})}
}

// find returns the index of the field with a name, or -1.
func (o *object) find(name string) int {
	for i := range o.fields {
		if f := &o.fields[i]; len(f.name) == len(name)+4 && f.name[2:len(f.name)-2] == name {
			return i
		}
	}
	return -1
}

// A seen is the set of the members of an object that have been read.
type seen uint32

// again reports whether a member was in the set, and adds it.
func (s *seen) again(i int) bool {
	was := *s&(1<<i) != 0
	*s |= 1 << i
	return was
}

// append appends the JSON of a value.
func (o *object) append(dst []byte, value unsafe.Pointer) []byte {
	start := len(dst)
	for i := range o.fields {
		f := &o.fields[i]
		at := unsafe.Add(value, f.offset)
		if f.omitZero && f.isZero(at) {
			continue
		}
		dst = append(dst, f.padded[:]...)[:len(dst)+len(f.name)]
		switch f.kind {
		case number:
			dst = strconv.AppendInt(dst, *(*int64)(at), 10)
		case text:
			dst = appendText(dst, *(*string)(at))
		case truth:
			dst = strconv.AppendBool(dst, *(*bool)(at))
		case algorithm, octet, behavior:
			dst = strconv.AppendUint(dst, uint64(*(*uint8)(at)), 10)
		case status:
			dst = append(append(append(dst, '"'), (*bucket.Status)(at).String()...), '"')
		case inner:
			dst = f.object.append(dst, at)
		case optional:
			dst = f.object.append(dst, *(*unsafe.Pointer)(at))
		case list:
			dst = f.appendList(dst, at)
		}
	}
	if len(dst) == start {
		return append(dst, "{}"...)
	}
	dst[start] = '{' // instead of the first comma
	return append(dst, '}')
}

func (f *field) isZero(at unsafe.Pointer) bool {
	switch f.kind {
	case text:
		return len(*(*string)(at)) == 0
	case number, optional, list:
		return *(*uintptr)(at) == 0
	}
	return *(*uint8)(at) == 0
}

func (f *field) appendList(dst []byte, at unsafe.Pointer) []byte {
	first, count := f.memory.elements(at)
	dst = append(dst, '[')
	for i := range count {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = f.object.append(dst, unsafe.Add(first, uintptr(i)*f.memory.size))
	}
	return append(dst, ']')
}

// scan reads the JSON of a value.
func (o *object) scan(s *scanner, value unsafe.Pointer) {
	var seen seen
	s.eat('{')
	next := 0
	for n := 0; s.more('}', n); n++ {
		i := next
		if i == len(o.fields) || !s.eatPattern(&o.fields[i].start) { // most have their members in this order
			if i = o.find(s.name()); i < 0 {
				s.unknown()
				continue
			}
		}
		if seen.again(i) {
			s.fail()
		}
		o.fields[i].scan(s, value)
		next = i + 1
	}
}

func (f *field) scan(s *scanner, value unsafe.Pointer) {
	at := unsafe.Add(value, f.offset)
	switch f.kind {
	case number:
		*(*int64)(at) = s.integer()
	case text:
		*(*string)(at) = s.text()
	case truth:
		*(*bool)(at) = s.truth()
	case algorithm:
		*(*bucket.Algorithm)(at) = s.algorithm()
	case octet:
		*(*bucket.Algorithm)(at) = s.octet()
	case behavior:
		*(*bucket.Behavior)(at) = s.behavior()
	case status:
		*(*bucket.Status)(at) = s.status()
	case inner:
		f.object.scan(s, at)
	case optional:
		f.object.scan(s, f.memory.create(at))
	case list:
		f.scanList(s, at)
	}
}

// usualBytes is about what an item of a list takes.
const usualBytes = 150

func (f *field) scanList(s *scanner, at unsafe.Pointer) {
	f.memory.reserve(at, 1+(len(s.message)-s.at)/usualBytes)
	s.eat('[')
	for n := 0; s.more(']', n); n++ {
		f.object.scan(s, f.memory.create(at))
	}
}

// replay reads the JSON of a value, but for its errors alone.
func (o *object) replay(r *replay) {
	var seen seen
	for r.open('{'); r.more('}'); {
		i := o.find(r.text())
		if i < 0 {
			r.unknown()
			continue
		}
		if seen.again(i) {
			r.wrong("this field is there twice")
		}
		o.fields[i].replay(r)
	}
}

func (f *field) replay(r *replay) {
	switch f.kind {
	case number:
		r.integer()
	case text:
		r.text()
	case truth:
		r.truth()
	case algorithm:
		r.algorithm()
	case octet:
		r.octet()
	case behavior:
		r.behavior()
	case status:
		r.status()
	case inner, optional:
		f.object.replay(r)
	case list:
		for r.open('['); r.more(']'); {
			f.object.replay(r)
		}
	}
}
