package system

import "runtime/debug"

// moduleVersion returns the version of a library that this program is built with.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return "(unknown)"
}
