// Package report describes the machine, keeps results as JSON and prints tables.
package report
