package scaling

import "math/bits"

// A backlog travels as one byte. Steps are of 32 up to 384 and of a twelfth to a
// twenty-fourth of the number from there on; the largest is about half a billion.

// levelSteps is how many steps there are in an octave.
const levelSteps = 12

// Backlog is the number that a level stands for: the smallest that has it.
func Backlog(level byte) int64 {
	e, m := int64(level/levelSteps), int64(level%levelSteps)
	if e == 0 {
		return m * 32
	}
	return (levelSteps + m) << (e + 4)
}

// Level is the level of a backlog; that of a negative one is 0.
func Level(backlog int64) byte {
	if backlog < 32 {
		return 0
	}
	if backlog >= Backlog(255) {
		return 255
	}
	e := bits.Len64(uint64(backlog)/(levelSteps<<4)) - 1 // the octave, from 1 on
	if e <= 0 {
		return byte(backlog / 32)
	}
	return byte(levelSteps*e + int(backlog>>(e+4)) - levelSteps)
}

// NextLevel is the level of a backlog that had the level before: it changes only
// when the new one is nearer by a margin, so that a backlog at the edge of two levels
// does not swing between them.
func NextLevel(backlog int64, before byte) byte {
	n := Level(backlog)
	if n == before {
		return n
	}
	away := Backlog(before) - backlog
	if away < 0 {
		away = -away
	}
	margin := int64(1) << (max(1, min(before/levelSteps, n/levelSteps)) + 3)
	if backlog-Backlog(n) < away-margin {
		return n
	}
	return before
}
