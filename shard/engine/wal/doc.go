// Package wal keeps the log of a raft group in files: an append-only, segmented write-ahead log (Log, a raft.LogStore) and a
// small store for raft's term and vote (Stable, a raft.StableStore).
//
// # Cost
//
// StoreLogs encodes its entries into one reused buffer, writes them with one write and makes them durable with one sync.
// Segments are filled with zeros, or are reused from deleted ones, before they are written to, because a sync that need not
// record new blocks costs less; the next one is prepared in the background.
//
// # Files
//
// A folder holds segments 0000000000000001.seg, …2.seg and so on, and files prepared for later segments (.zero, of zeros;
// .old, reused). All numbers are little-endian.
//
//	segment  header (64 bytes), then frames, each on a multiple of 8 bytes, the last one of a full segment being "sealed"
//	header   magic, CRC-32C, version, flags, segment number, salt, number of the first frame, bounds before it, file size
//	frame    CRC-32C, kind, body length, count, salt, frame number, synced, first index; then the body, zeros up to 8 bytes
//	entry    data length, extensions length, term, time appended, type, data, extensions
//
// A frame is one StoreLogs, or a mark: "bounds" (entries were deleted at the front or the end), "closed" (a clean Close),
// "sealed" (the segment ends). Frames are numbered 1, 2, 3 … over the life of the log. The salt is random and new each time
// a file becomes a segment, and the checksum covers it and where the frame lies: what an earlier life of the file or
// an entry's data holds is never taken for a frame. "synced" is the highest frame number that was known to be durable when
// the frame was written.
//
// # What Open accepts
//
// Open reads all frames. At the first place k where frame number k cannot be read:
//
//   - A frame that can be read, anywhere behind it, says that frames up to k or more were durable, or a later segment was
//     begun, or MustHave asks for an entry that is not there: acknowledged entries are damaged. Open returns a
//     CorruptionError and changes nothing. A missing or shortened file is the same, except that only MustHave can tell
//     that the newest file is missing.
//   - Nothing says so: it is a write that was not finished when the power went or the process ended. Its remains are
//     overwritten with zeros, and the Recovery says so.
//
// With DurabilityFsync each frame says of the one before that it was durable, so only the very last frame can be in doubt,
// and after a clean Close none. What no frame proves to be durable is written and synced again before the log is used.
//
// # Failures
//
// A failed or short write, a full disk or a failed sync makes the log fail for good: every later call returns the same
// FailedError. A failed sync is never tried again, because the system may have dropped the data and then report success.
// A full disk is noticed when the next segment is prepared, while the current one still has room: Options.OnLowSpace.
//
// # By hand
//
// Check reports on a folder. Repair cuts a damaged log, keeps what it cut off in .bad files, and loses it from the log.
package wal
