package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"weir/limits"
)

// A snapshot is a file with counts; its path is "" if there is none. Nothing that happens to it keeps a node from
// running.
type snapshot struct {
	path string
	log  zerolog.Logger
}

// load reads the snapshot, and puts it aside so that nothing in it can count twice.
func (s snapshot) load(limiter *limits.Limiter) {
	if s.path == "" {
		return
	}
	in, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	states := 0
	if err == nil {
		states, err = limiter.Load(in)
		in.Close()
	}
	aside := s.path + ".loaded"
	if err != nil {
		aside = s.path + ".damaged"
		s.log.Error().Err(err).Str("file", s.path).Str("kept_as", aside).Msg("the snapshot can't be used: limits begin anew")
	} else {
		s.log.Info().Str("file", s.path).Int("limits", states).Msg("snapshot loaded")
	}
	if err := os.Rename(s.path, aside); err != nil {
		s.log.Error().Err(err).Str("file", s.path).
			Msg("the snapshot can't be put aside: after a crash it would be read again")
	}
}

// save writes the snapshot: all of it, or nothing.
func (s snapshot) save(limiter *limits.Limiter) {
	if s.path == "" || limiter.Stats().Entries == 0 {
		return
	}
	states, err := s.write(limiter)
	if err != nil {
		s.log.Error().Err(err).Str("file", s.path).Msg("the snapshot can't be written")
		return
	}
	s.log.Info().Str("file", s.path).Int("limits", states).Msg("snapshot written")
}

func (s snapshot) write(limiter *limits.Limiter) (states int, err error) {
	out, err := os.CreateTemp(filepath.Dir(s.path), filepath.Base(s.path)+".*.tmp")
	if err != nil {
		return 0, err
	}
	defer os.Remove(out.Name()) // which fails once it has its own name
	states, err = limiter.Save(out)
	err = errors.Join(err, out.Sync(), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), s.path)
	}
	if dir, failed := os.Open(filepath.Dir(s.path)); failed == nil {
		err = errors.Join(err, dir.Sync(), dir.Close()) // so that the name is there, too, after a loss of power
	}
	return states, err
}
