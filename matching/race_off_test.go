//go:build !race

package matching

// raceDetector says that everything takes several times as long.
const raceDetector = false
