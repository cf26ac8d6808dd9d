package node

import (
	"context"
	"io/fs"
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// limitMemory has the garbage collector run more often near the end of what the container may have, unless GOMEMLIMIT
// is set. It warns if states, the limits that may be remembered, are more than the container has memory for.
func limitMemory(states int, log zerolog.Logger) {
	most := containerMemory(os.DirFS("/sys/fs/cgroup"))
	if most > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(most / 10 * 9) // the rest is for what the runtime doesn't count
	}
	if need := memoryFor(states); most > 0 && need > most {
		log.Warn().Int64("container_mb", most>>20).Int64("needed_mb", need>>20).
			Msg("WEIR_CACHE_SIZE allows for more limits than this container has memory for: " +
				"it may be killed when it has to remember as many")
	}
}

// tuneGC has the garbage collector run less often while little memory is in use, until ctx ends, unless GOGC is set.
// There is more headroom for garbage where a node has to be quick and its callers would wait for the collector: while
// it takes over limits from others, as taken counts, and once leaving is closed.
func tuneGC(ctx context.Context, leaving <-chan struct{}, taken func() uint64) {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var headroom gcHeadroom
	for now := 0; ; {
		runtimemetrics.Read(live)
		next := gcPercent(live[0].Value.Uint64(), headroom.spare(taken()))
		if next < now*9/10 || next > now*11/10 { // each change stops the world
			now = next
			debug.SetGCPercent(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-leaving:
			runtimemetrics.Read(live)
			debug.SetGCPercent(gcPercent(live[0].Value.Uint64(), moreMemory))
			return
		case <-tick.C:
		}
	}
}

// What may be garbage, in a heap in which less than that is in use.
const (
	spareMemory = 256 << 20
	moreMemory  = 3 * spareMemory // for a node that has to be quick
)

// manyTaken is how many limits a node takes over in a second when it has to be quick.
const manyTaken = 1000

// A gcHeadroom is asked each second how much memory there is for garbage.
type gcHeadroom struct{ taken uint64 }

// spare returns the bytes, by how many limits have been taken over.
func (h *gcHeadroom) spare(taken uint64) uint64 {
	before := h.taken
	h.taken = taken
	if taken-before > manyTaken {
		return moreMemory
	}
	return spareMemory
}

// gcPercent returns GOGC for a heap of which live bytes are in use: 400 for a small one, down to the usual 100. Looking
// at all that is live after as many bytes of garbage as there are live ones would be a sixth of all work, under load.
func gcPercent(live, spare uint64) int {
	live = max(live, 1)
	return int(100 * max(live, min(4*live, spare)) / live)
}

// memoryFor returns about the bytes that a node with so many limits takes.
func memoryFor(states int) int64 {
	const perState, rest = 300, 50 << 20 // with keys of 40 to 90 bytes
	return rest + perState*int64(states)
}

// containerMemory returns the bytes that a container may have, from the files of cgroups, version 2 or 1; 0 if they set
// no limit.
func containerMemory(cgroup fs.FS) int64 {
	for _, name := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := fs.ReadFile(cgroup, name)
		if err != nil {
			continue
		}
		most, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && 0 < most && most < 1<<50 { // version 1 says "no limit" by a number near 2^63
			return most
		}
	}
	return 0
}
