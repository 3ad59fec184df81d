# SPDX-License-Identifier: Apache-2.0
# awk -f untouched_calls.awk untouched.cu HEADER...: does it make every public call that takes a stream, or is of devices?
# The last line is `N passed, N failed, 0 skipped`.

FNR == NR { test = test $0 "\n"; next }
/^COVEY_API / || text != "" {
	text = text $0
	if ($0 !~ /;/)
		next
	match(text, /covey_[a-z_]+\(/)
	call = substr(text, RSTART, RLENGTH)
	if (text !~ /CUstream_st/ && call !~ /^covey_device_/)
		call = ""
	text = ""
	if (call == "")
		next
	if (index(test, call)) {
		passed++
	} else {
		print "untouched.cu does not call " call ")"
		failed++
	}
}
END {
	print passed + 0 " passed, " failed + 0 " failed, 0 skipped"
	exit failed > 0 || passed < 30
}
