// Package page draws what simulations found: SVG pictures and a page that needs
// nothing else, with no scripts and no fonts from elsewhere.
package page
