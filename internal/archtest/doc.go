// Package archtest keeps the shape of the repository: its test fails when a
// package imports something above its floor, when the SDK reaches server code,
// when a package has no floor yet, or when it does not say what it is for.
//
// The floors are listed in floors.go and explained in docs/architecture.md.
// The check reads import clauses only; it builds nothing and knows no build
// tags, so code for other systems is checked too.
package archtest
