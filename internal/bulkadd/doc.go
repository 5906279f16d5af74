// Package bulkadd reads a stream of items and sends it in batches, several in
// flight. A fast stream fills its batches; an item of a slow one does not wait
// for others. It knows nothing of the server: `switchyard add` hands it a
// function that sends.
package bulkadd
