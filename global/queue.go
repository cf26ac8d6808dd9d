package global

import (
	"slices"

	"weir/limits"
)

// A queue holds limits that wait to be given away, those of the highest rank first. It keeps them in runs as they came,
// each in that order, so that to add half a million moves nothing.
type queue struct{ runs [][]limits.Found }

// add adds a run, whose memory belongs to q from then on.
func (q *queue) add(run []limits.Found) {
	if len(run) > 0 {
		q.runs = append(q.runs, run)
	}
}

// putBack puts what was taken, and still waits, before all of the same rank.
func (q *queue) putBack(rest []limits.Found) {
	if len(rest) > 0 {
		q.runs = slices.Insert(q.runs, 0, rest)
	}
}

func (q *queue) len() (n int) {
	for _, run := range q.runs {
		n += len(run)
	}
	return n
}

// take takes out the first n, or all there are.
func (q *queue) take(n int) []limits.Found {
	first := make([]limits.Found, 0, min(n, q.len()))
	for len(first) < cap(first) {
		i := q.first()
		first = append(first, q.runs[i][0])
		if q.runs[i] = q.runs[i][1:]; len(q.runs[i]) == 0 {
			q.runs = slices.Delete(q.runs, i, i+1)
		}
	}
	return first
}

// first says which run begins with the first of all. There must be one.
func (q *queue) first() (first int) {
	for i := range q.runs {
		if q.runs[i][0].TTLClass > q.runs[first][0].TTLClass {
			first = i
		}
	}
	return first
}
