// Package events is virtual time for simulations: a queue of things to happen.
package events
