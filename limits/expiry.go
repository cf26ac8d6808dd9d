package limits

// An expiryIndex holds all records of a shard, in no order, and of each a time before which it surely hasn't run out. A
// sweep looks at these times, 32 in a cache line, and touches the memory of those records alone that may have.
type expiryIndex struct {
	pages []*page
	size  int
}

const (
	pageSize   = 32
	maxEntries = 1 << 16 // the most that an index has
)

type page struct {
	dues    [pageSize]tick
	records [pageSize]*record
}

// A tick is a time, rounded down to a little more than four seconds. It tells apart what lies within horizon; later
// times are held as those at the horizon, and looked at again then.
type tick uint16

const (
	tickBits = 32 // of a time in nanoseconds
	horizon  = int64(1<<15-1) << tickBits
)

func tickOf(t int64) tick { return tick(t >> tickBits) }

// ahead returns the ticks from now until t; none if t is over.
func (t tick) ahead(now tick) int64 { return max(0, int64(int16(t-now))) }

func (x *expiryIndex) add(r *record, due tick) {
	if x.size == len(x.pages)*pageSize {
		x.pages = append(x.pages, new(page))
	}
	x.put(r, due, x.size)
	x.size++
}

func (x *expiryIndex) put(r *record, due tick, place int) {
	p := x.pages[place/pageSize]
	p.dues[place%pageSize], p.records[place%pageSize] = due, r
	r.place = uint16(place)
}

// at returns the record at a place, of which there are size.
func (x *expiryIndex) at(place int) (*record, tick) {
	p := x.pages[place/pageSize]
	return p.records[place%pageSize], p.dues[place%pageSize]
}

// update sets another time for r.
func (x *expiryIndex) update(r *record, due tick) {
	x.pages[r.place/pageSize].dues[r.place%pageSize] = due
}

// remove puts the last record in r's place. One empty page is kept, so that records that come and go at its edge cost
// nothing.
func (x *expiryIndex) remove(r *record) {
	x.size--
	last, due := x.at(x.size)
	x.put(last, due, int(r.place))
	x.pages[x.size/pageSize].records[x.size%pageSize] = nil
	if n := x.size/pageSize + 2; n < len(x.pages) {
		x.pages[n] = nil
		x.pages = x.pages[:n]
	}
}
