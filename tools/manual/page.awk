# SPDX-License-Identifier: Apache-2.0
# Markdown as docs/ uses it to man(7): headings, paragraphs, lists, code and tables, of which each row becomes an entry
# with its first cell as the tag. awk -f page.awk PAGE.md...

function escape(s)
{
	gsub(/\\/, "\\e", s)
	gsub(/-/, "\\-", s)
	return s
}

# `code` and *stress*
function inline(s, out, part, n, i)
{
	s = escape(s)
	n = split(s, part, "`")
	out = ""
	for (i = 1; i <= n; i++) {
		if (i % 2)
			gsub(/\*\*?/, "", part[i])
		out = out (i % 2 ? part[i] : "\\fB" part[i] "\\fR")
	}
	sub(/^['.]/, "\\\\\\&&", out)
	return out
}

function row(line, cell, n, i, text)
{
	sub(/^\| */, "", line)
	sub(/ *\|$/, "", line)
	n = split(line, cell, / *\| */)
	if (!in_table) {
		for (i = 1; i <= n; i++)
			head[i] = cell[i]
		columns = n
		in_table = 1
		return
	}
	if (line ~ /^-+( *\| *-+)*$/ || line ~ /^---/)
		return
	print ".TP"
	print inline(cell[1])
	text = ""
	for (i = 2; i <= n; i++)
		if (cell[i] != "-")
			text = text (text == "" ? "" : "; ") (n == 2 ? "" : head[i] ": ") cell[i]
	print inline(text) (n == 2 ? "" : ".")
}

/^\|/ { row($0); next }
{ in_table = 0 }
/^```/ { code = !code; print code ? ".nf" : ".fi"; next }
code { s = escape($0); sub(/^['.]/, "\\\\\\&&", s); print s; next }
/^# / { print ".SH " toupper(substr($0, 3)); next }
/^##+ / { sub(/^#+ /, ""); print ".SS " inline($0); next }
/^- / { print ".IP \\(bu 2"; print inline(substr($0, 3)); listed = 1; next }
/^ *$/ { if (!blank) print ".PP"; blank = 1; next }
/^    / { print ".nf"; print inline(substr($0, 5)); print ".fi"; next }
{ blank = 0; print inline($0) }
