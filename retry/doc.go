// Package retry computes how long to wait before the next attempt.
//
// It is pure: it reads no clock, starts no timer and rolls no dice. The caller
// hands in the number of the attempt and a random number, and does the waiting.
package retry
