// Package system starts, feeds and stops the systems that are compared: one file
// per system, one interface for all.
package system
