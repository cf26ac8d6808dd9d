package limits

// An agenda holds all records of a shard, in no order, and of each a time before which it surely hasn't run out. A sweep looks
// at these times, 32 in a cache line, and touches the memory of those records alone that may have.
type agenda struct {
	pages []*page
	size  int
}

const (
	pageSize = 32
	places   = 1 << 16 // the most that an agenda has
)

type page struct {
	dues    [pageSize]tick
	records [pageSize]*record
}

// A tick is a time, rounded down to a little more than four seconds. It tells apart what lies within horizon; later times
// are noted as those at the horizon, and looked at again then.
type tick uint16

const (
	tickBits = 32 // of a time in nanoseconds
	horizon  = int64(1<<15-1) << tickBits
)

func tickOf(t int64) tick { return tick(t >> tickBits) }

// ahead gives the ticks from now until t; none if t is over.
func (t tick) ahead(now tick) int64 { return max(0, int64(int16(t-now))) }

func (a *agenda) add(r *record, due tick) {
	if a.size == len(a.pages)*pageSize {
		a.pages = append(a.pages, new(page))
	}
	a.put(r, due, a.size)
	a.size++
}

func (a *agenda) put(r *record, due tick, place int) {
	p := a.pages[place/pageSize]
	p.dues[place%pageSize], p.records[place%pageSize] = due, r
	r.place = uint16(place)
}

// at gives the record at a place, of which there are size.
func (a *agenda) at(place int) (*record, tick) {
	p := a.pages[place/pageSize]
	return p.records[place%pageSize], p.dues[place%pageSize]
}

// note notes another time for r.
func (a *agenda) note(r *record, due tick) {
	a.pages[r.place/pageSize].dues[r.place%pageSize] = due
}

// remove puts the last record in r's place. One empty page is kept, so that who comes and goes at its edge costs nothing.
func (a *agenda) remove(r *record) {
	a.size--
	last, due := a.at(a.size)
	a.put(last, due, int(r.place))
	a.pages[a.size/pageSize].records[a.size%pageSize] = nil
	if n := a.size/pageSize + 2; n < len(a.pages) {
		a.pages[n] = nil
		a.pages = a.pages[:n]
	}
}
