package node

import (
	"context"
	"math"
	"sync"
	"time"
)

// Run does what a node has to do by itself: it forgets limits that have run out, keeps counts in step with other nodes,
// follows DNS, and tunes the garbage collector. It returns when ctx has ended or the node is closed, and all of that
// has ended. There must be one Run at a time.
func (n *Node) Run(ctx context.Context) {
	n.running.Lock() // which Close waits for
	defer n.running.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.closed, cancel)()
	var loops sync.WaitGroup
	for _, loop := range n.loops {
		loops.Go(func() { loop(ctx) })
	}
	loops.Wait()
}

// StartLeaving begins to leave the cluster and returns at once: peers are told, and what this node is asked from now on
// it has those nodes count that take over its limits. Where there is no such node it goes on as before.
func (n *Node) StartLeaving() {
	n.leave.Do(func() {
		close(n.leaving)
		if n.peers != nil && n.closed.Err() == nil && n.peers.Leave() {
			go n.peers.TellLeaving(n.closed)
		}
	})
}

// leavePatience is how long a node that leaves tries to hand over while no other one takes anything: they may only be
// busy.
const leavePatience = 2 * time.Second

// Leave leaves the cluster: it tells the owners what this node has counted for them, and gives them the limits that
// they take over. It tries again until they have all of it, ctx ends, or no node takes anything any more. It may be
// called once more for what has been counted since.
func (n *Node) Leave(ctx context.Context) {
	n.StartLeaving()
	if n.global == nil {
		return
	}
	left, since := math.MaxInt, time.Now()
	for n.closed.Err() == nil {
		err, pending := n.global.Sync(ctx), n.global.Pending()
		if err == nil || pending == 0 {
			return
		}
		if pending < left {
			left, since = pending, time.Now()
		}
		if ctx.Err() != nil || time.Since(since) > leavePatience {
			n.log.Warn().Err(err).Int("limits", pending).Msg("not all that this node has counted could be handed over")
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Close ends Run and all that the node has begun. What it has not handed over it keeps in its snapshot, so call Leave
// first to lose nothing. It closes the connections to peers, and the node must not be used to decide any more.
func (n *Node) Close() {
	n.finish.Do(func() {
		n.end()
		n.running.Lock()
		defer n.running.Unlock()
		if n.global != nil {
			n.global.KeepAll()
		}
		n.snapshot.save(n.limiter)
		if n.peers != nil {
			n.peers.Close()
		}
	})
}
