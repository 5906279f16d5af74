// Package api holds the wire: the generated code of the protocol (package
// api/switchyard/v1), the reasons of errors (package api/reason), and the OpenAPI
// document of the HTTP API.
package api
