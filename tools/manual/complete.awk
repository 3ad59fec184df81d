# SPDX-License-Identifier: Apache-2.0
# The output of `ep-X --help` as a completion of bash: long and short options, commands if there are any, words
# of an option's argument (--restart=never|on-failure), files otherwise.
# awk -v name=ep-X -f complete.awk HELP

/^Commands:/ { commands = 1; next }
/^$/ { commands = 0 }
commands && /^  [a-z]/ { words = words " " $1 }
/^ +-/ {
	line = $0
	while (match(line, /--?[A-Za-z][a-z-]*/)) {
		option = substr(line, RSTART, RLENGTH)
		before = RSTART > 1 ? substr(line, RSTART - 1, 1) : " "
		rest = substr(line, RSTART + RLENGTH)
		if (before != " " || line ~ /^  +-.*   .*--/ && seen > 1)
			break
		words = words " " option
		if (match(rest, /^=[a-z-]+(\|[a-z-]+)+/)) {
			choice = substr(rest, 2, RLENGTH - 1)
			gsub(/\|/, " ", choice)
			choices = choices "\t" option ") COMPREPLY=($(compgen -W \"" choice "\" -- \"$word\")); return ;;\n"
		}
		line = rest
		if (line !~ /^, -/)
			break
	}
}
END {
	print "# bash completion for " name ", made from its --help"
	f = name
	gsub(/-/, "_", f)
	print "_" f "()"
	print "{"
	print "\tlocal word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}"
	print "\tif [ \"$word\" = \"=\" ]; then"
	print "\t\tword="
	print "\telif [ \"$before\" = \"=\" ]; then"
	print "\t\tbefore=${COMP_WORDS[COMP_CWORD - 2]}"
	print "\tfi"
	print "\tcase $before in"
	printf "%s", choices
	print "\tesac"
	print "\tCOMPREPLY=($(compgen -W \"" substr(words, 2) "\" -- \"$word\"))"
	print "}"
	print "complete -o default -F _" f " " name
}
