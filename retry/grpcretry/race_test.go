//go:build race

package grpcretry

const raceDetector = true
