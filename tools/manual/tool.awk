# SPDX-License-Identifier: Apache-2.0
# The output of `ep-X --help` as a page of section 1. awk -v name=ep-X -v version=V -f tool.awk HELP
# argp's layout is the grammar: two blanks before an option or an entry of a list. The margin is so wide that no line of
# the text after the options is broken, only text beside an option.

function escape(s)
{
	gsub(/\\/, "\\e", s)
	gsub(/-/, "\\-", s)
	sub(/^['.]/, "\\\\\\&&", s)
	return s
}

function entry(tag, text)
{
	print ".TP"
	print ".B " escape(tag)
	if (text != "")
		print escape(text)
}

BEGIN { synopsis = 1 }
synopsis && /^Usage: / {
	sub(/^Usage: [^ ]* */, "")
	usage = $0
	next
}
synopsis && /^  or: / { next }
synopsis {
	brief = brief (brief == "" ? "" : " ") $0
	if (brief ~ /\.$/ || $0 == "") {
		sub(/\.$/, "", brief)
		synopsis = 0
		print ".TH " toupper(name) " 1 \"\" \"covey " version "\" \"covey\""
		print ".SH NAME"
		print escape(name) " \\- " escape(tolower(substr(brief, 1, 1)) substr(brief, 2))
		print ".SH SYNOPSIS"
		print ".B " escape(name)
		print escape(usage)
		print ".SH OPTIONS"
	}
	next
}
/^Mandatory or optional arguments to long/ { owed = 1; next }
/^Exit status:/ {
	owed = 0
	print ".SH EXIT STATUS"
	sub(/^Exit status: */, "")
	if ($0 != "")
		print escape($0)
	next
}
/^[A-Z][a-z]+:$/ { owed = 0; sub(/:$/, ""); print ".SH " toupper($0); next }
/^ +-/ {
	line = $0
	sub(/^ +/, "", line)
	at = match(line, /  +/)
	if (at)
		entry(substr(line, 1, at - 1), substr(line, at + RLENGTH))
	else
		entry(line, "")
	next
}
/^  [^ ]/ {
	line = substr($0, 3)
	at = match(line, /  +/)
	if (at) {
		entry(substr(line, 1, at - 1), substr(line, at + RLENGTH))
		listed = 1
		next
	}
}
/^ *$/ { if (!owed) print ".PP"; next }
owed { print ".SH DESCRIPTION"; owed = 0 }
listed { print ".PP"; listed = 0 }
{ sub(/^ +/, ""); print escape($0) }
END {
	print ".SH SEE ALSO"
	print ".BR covey (7),"
	print ".BR covey (3)"
}
