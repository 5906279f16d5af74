// Package taskcmd runs a program once per task: the payload on its standard
// input, what is known of the task in its environment. It knows processes and
// nothing of queues; `switchyard work` puts it behind a worker.
package taskcmd
