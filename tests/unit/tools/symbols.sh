#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The library shows covey_* and nothing else. symbols.sh LIBRARY
set -u
all=$(nm -D --defined-only "$1" | awk '{ print $NF }' | grep -v '^covey\.map$')
if ! echo "$all" | grep -q '^covey_strerror'; then
	echo "covey_strerror is not exported"
	exit 1
fi
# Sanitizers leave names of their own.
foreign=$(echo "$all" | grep -v -e '^covey_' -e '^__[a-z]*san_' -e '^___[a-z]*san_' -e '@')
if [ -n "$foreign" ]; then
	echo "exported, but not covey_*:"
	echo "$foreign"
	exit 1
fi
