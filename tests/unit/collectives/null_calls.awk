# SPDX-License-Identifier: Apache-2.0
# awk -f null_calls.awk HEADER...: a row of calls for each public function, for test_null.c.
#
#	CALL(NAME, POINTERS, NEEDED, KIND, NAME(arguments))
#
# An argument that is a pointer is P(BIT, VALUE): NULL where that bit is asked for. NEEDED are the bits of pointers
# without which the call cannot succeed. KIND: INT returns a status, OTHER does not. And of each struct of arguments
# FIELD(STRUCT, NAME) for its pointers. A type or name that is not known here ends the build: then it is added below.

function unknown(what)
{
	print "null_calls.awk: " what " is not known: give it a value" > "/dev/stderr"
	failed = 1
	exit 1
}

function trim(s)
{
	gsub(/[ \t]+/, " ", s)
	sub(/^ /, "", s)
	sub(/ $/, "", s)
	return s
}

# The value of a pointer of @type, called @name.
function pointer(type, name)
{
	if (type ~ /\*\*$/ && type ~ /^(const )?struct covey_/) {
		sub(/^(const )?struct covey_/, "", type)
		sub(/ \*\*$/, "_out", type)
		return type
	}
	if (type ~ /^(const )?struct covey_[a-z_]+ \*$/) {
		sub(/^(const )?struct covey_/, "", type)
		sub(/ \*$/, "", type)
		return type
	}
	if (type == "void **") return "memory_out"
	if (type == "const char *const *") return "words"
	if (type == "const size_t *") return "sizes"
	if (type == "const int *") return "ints"
	if (type == "char *") return "text"
	if (type == "const char *") return name "_name"
	if (type ~ /^(const )?void \*$/) return "bytes"
	if (type == "covey_log_fn") return "log"
	unknown("the type " type)
}

function number(name)
{
	if (name ~ /^(count|sendcount|recvcount|n|size|argc|deadline_ns|ms|seq)$/) return 1
	if (name == "bytes") return 16
	if (name == "dtype") return "COVEY_UINT8"
	if (name ~ /^(redop|root|on_loss|tag|err|level|ranks)$/) return 0
	if (name ~ /^(peer|rank)$/) return 9
	unknown("the number " name)
}

# A handle, what a call fills in, and structs of arguments: no call does without. Of join the settings may be NULL.
function needed(type, name, fn)
{
	if (type ~ /^(const )?struct covey_(group|work|ep) \*$/) return fn != "covey_last_error"
	if (type ~ /\*\*$/) return 1
	if (type ~ /covey_(ep_config|ep_sizes|dispatch_args|combine_args|view|event|error_info|device_outcome|device_message_outcome) \*$/) return 1
	return name == "text" || name == "argv"
}

function argument(arg, fn, type, name)
{
	if (arg == "void") return ""
	if (arg ~ /\(\*/) {
		name = arg
		sub(/.*\(\*/, "", name)
		sub(/\).*/, "", name)
		return "P(" pointers++ ", " name ")"
	}
	match(arg, /[a-z_]+$/)
	name = substr(arg, RSTART)
	type = trim(substr(arg, 1, RSTART - 1))
	if (type == "struct CUstream_st *") return "NULL"
	if (type !~ /\*$/ && type != "covey_log_fn") return number(name)
	if (needed(type, name, fn)) need += 2 ^ pointers
	return "P(" pointers++ ", " pointer(type, name) ")"
}

function declaration(text, fn, list, kind, out, depth, arg, c, i)
{
	match(text, /covey_[a-z_]+\(/)
	fn = substr(text, RSTART, RLENGTH - 1)
	kind = substr(text, 1, RSTART - 1) == "int " ? "INT" : "OTHER"
	list = substr(text, RSTART + RLENGTH)
	sub(/\);$/, "", list)
	pointers = need = depth = 0
	for (i = 1; i <= length(list) + 1; i++) {
		c = substr(list, i, 1)
		depth += (c == "(") - (c == ")")
		if (i > length(list) || (c == "," && !depth)) {
			arg = argument(trim(arg), fn)
			out = out (out == "" ? "" : ", ") arg
			arg = ""
		} else {
			arg = arg c
		}
	}
	printf "CALL(%s, %d, %d, %s, %s(%s))\n", fn, pointers, need, kind, fn, out
	calls++
}

/^COVEY_API / || text != "" {
	line = $0
	sub(/^COVEY_API /, "", line)
	text = text (text == "" ? "" : " ") trim(line)
	if (line ~ /;$/) {
		declaration(trim(text))
		text = ""
	}
	next
}
/^struct covey_(ep_config|dispatch_args|combine_args) \{/ { struct = $2; sub(/^covey_/, "", struct); next }
/^\}/ { struct = "" }
struct != "" && /^\t[a-z].*\*[a-z_0-9]+;/ {
	match($0, /\*[a-z_0-9]+;/)
	printf "FIELD(%s, %s)\n", struct, substr($0, RSTART + 1, RLENGTH - 2)
	fields++
}
END {
	if (!failed && (calls < 60 || fields < 15))
		unknown("the header, with " calls + 0 " functions and " fields + 0 " fields,")
}
