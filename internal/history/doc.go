// Package history records what clients of a task queue asked and were told, and
// judges afterwards whether a correct queue could have answered so.
//
// A Record is one task's part in one request: when the request was sent, when
// its answer came, and what the answer was. Records are kept as JSON lines, so
// that a history can be looked at, cut down and checked again.
//
// Check is pure. It knows of a request only what its client saw: the effect lies
// somewhere between sending and answer, and a request without an answer may have
// had its effect at any time after it was sent, or never. It reports only what no
// order of the effects can explain, so every violation is real:
//
//   - an acknowledged task that was neither completed nor is still there;
//   - a delivery while an earlier delivery's lease was alive, where a lease lives
//     until its deadline as the server told it, or until it was given back;
//   - a delivery, or a sighting in the queue, after an acknowledged completion;
//   - a task that nobody added, or whose content changed on the way;
//   - an answer that contradicts another: two ends of one lease, a completion by
//     a lease that was superseded, "already completed" when nobody did.
//
// Redriving dead tasks and times to live are not modelled: histories with them
// must leave those tasks out.
package history
