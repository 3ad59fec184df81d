# SPDX-License-Identifier: Apache-2.0
# A public header as a page of section 3: its parts are the sections, a function or struct with its comment an entry.
# awk -v version=V -v page=covey -f api.awk covey.h; with -v names=1 only the names of the functions, one a line.
# What only a compiler of CUDA sees is not in it.

function escape(s)
{
	gsub(/\\/, "\\e", s)
	gsub(/-/, "\\-", s)
	sub(/^['.]/, "\\\\\\&&", s)
	return s
}

function comment(i)
{
	for (i = 1; i <= comments; i++)
		print escape(text[i])
	comments = 0
}

function show(i)
{
	if (names)
		return
	print ".PP"
	print ".nf"
	for (i = 1; i <= lines; i++)
		print ".B \"" code[i] "\""
	print ".fi"
	if (comments) {
		print ".RS 4"
		print ".nf"
		comment()
		print ".fi"
		print ".RE"
	}
}

function add(s)
{
	sub(/^COVEY_API /, "", s)
	gsub(/\\/, "\\e", s)
	gsub(/"/, "\\(dq", s)
	gsub(/-/, "\\-", s)
	gsub(/\t/, "    ", s)
	code[++lines] = s
}

BEGIN {
	if (!names) {
		print ".TH " toupper(page) " 3 \"\" \"covey " version "\" \"covey\""
		print ".SH NAME"
		print page " \\- the calls of the library"
		print ".SH SYNOPSIS"
		print ".B #include <" page ".h>"
		print ".PP"
		print "cc job.c $(pkg\\-config \\-\\-cflags \\-\\-libs covey)"
		print ".SH DESCRIPTION"
	}
}
/^\/\* ---- / {
	sub(/^\/\* ---- /, "")
	sub(/ -+ \*\/$/, "")
	if (!names)
		print ".SH " toupper($0)
	comments = 0
	begun = 1
	next
}
# The opening comment is the description.
!begun && !opened && /^ \* / {
	if (++head > 1 && !names)
		print (/^ \*   / ? ".nf\n" escape(substr($0, 4)) "\n.fi" : escape(substr($0, 4)))
	next
}
!begun && !opened && /^ \*$/ { if (!names && head > 1) print ".PP"; next }
/^#ifndef COVEY_/ { opened = 1 }
/^#if defined\(__CUDACC__\)/ { exit }
!begun { next }
/^\/\*\*?/ {
	comments = 0
	line = $0
	sub(/^\/\*\*? ?/, "", line)
	inside = line !~ /\*\/$/
	sub(/ *\*\/$/, "", line)
	if (line != "")
		text[++comments] = line
	next
}
inside {
	line = $0
	if (line ~ /\*\/$/)
		inside = 0
	sub(/^ \*\/?/, "", line)
	sub(/^ /, "", line)
	sub(/ *\*\/$/, "", line)
	if (inside || line != "")
		text[++comments] = line
	next
}
/^COVEY_API / || declaring {
	if (!declaring)
		lines = 0
	add($0)
	declaring = $0 !~ /;$/
	if (!declaring) {
		line = code[1]
		match(line, /covey_[a-z_]*\(/)
		if (names)
			print substr(line, RSTART, RLENGTH - 1)
		show()
	}
	next
}
/^(struct|enum) .*\{/ || structure {
	if (!structure)
		lines = 0
	if ($0 !~ /^#/)
		add($0)
	structure = $0 !~ /\};?$/ && $0 !~ /\}; *\/\*/
	if (!structure)
		show()
	next
}
/^#define/ { comments = 0 }
/^$/ { if (comments && !names) { print ".PP"; print ".nf"; comment(); print ".fi" } comments = 0 }
END {
	if (!names) {
		print ".SH SEE ALSO"
		print ".BR covey (7)"
	}
}
