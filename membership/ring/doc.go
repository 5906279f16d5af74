// Package ring places keys on servers by consistent hashing, so that a server that comes
// or goes moves few of them. It is pure: a Ring is made from a list of servers and never
// changes.
//
// Each server has 100 points on a circle of 32-bit hashes (FarmHash Fingerprint32). A key
// belongs to the server of the first point at or after the key's hash, and LookupN goes on
// from there to the next distinct servers. The placement is equal to that of ringpop as
// Temporal uses it; vectors from there are tests here.
//
// Source: Karger et al., "Consistent Hashing and Random Trees", STOC 1997.
package ring
