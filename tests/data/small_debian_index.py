"""A Debian package index of five packages, for the loader and for the builder."""

INDEX = """\
Package: alpha
Section: net
Depends: beta
Tag: role::program, use::chatting
Description: a chat client for people who like to chat

Package: alpha-doc
Source: alpha
Section: doc
Suggests: alpha
Description: documentation of a chat client

Package: beta
Depends: alpha
Replaces: alpha
Tag: role::program
Description: library without a section

Package: gamma
Section: net
Breaks: beta
Tag: role::data
Description: another client

Package: delta
Section: net
Tag: role::program
Description: a server for chat clients
"""
