package discovery

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstRetry   = 250 * time.Millisecond // after the first lookup that found nothing, doubled after each further one
	slowestRetry = 2 * time.Second        // until there is a list
)

// Watch looks up the members until ctx ends: at once, soon again until there is a list in which set finds this node, and
// then at intervals of every, which must be positive, or a little less. It passes each list to set, also when nothing
// changed, and each error to failed; what came with the end of ctx goes to neither. The lookup is as [SRV.Lookup].
func Watch(ctx context.Context, every time.Duration, lookup func(context.Context) ([]Member, error),
	set func([]Member) bool, failed func(error)) {
	retry := firstRetry
	listed := false
	for {
		members, err := lookup(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failed(err)
		}
		if len(members) > 0 {
			listed = set(members) || listed
		}
		wait := every
		if !listed {
			wait = min(retry, every)
			retry = min(2*retry, slowestRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait - rand.N(wait/8+1)): // nodes that started together need not ask together
		}
	}
}
