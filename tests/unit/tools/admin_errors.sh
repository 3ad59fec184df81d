#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ep-admin says no to wrong arguments with code 1, and to a store that is not there with 3 or 4, without
# ever showing a password. admin_errors.sh EP-ADMIN
set -u
admin=$1 failed=0
unset COVEY_STORE COVEY_GROUP COVEY_STORE_PASSWORD

# expect CODES ARGS...: the exit code is one of CODES, and a reason is given on standard error
expect()
{
	codes=$1
	shift
	said=$("$admin" "$@" 2>&1 >/dev/null)
	code=$?
	case " $codes " in
	*" $code "*) ;;
	*) echo "ep-admin $*: code $code, expected one of: $codes; it said: $said"; failed=1 ;;
	esac
	[ -n "$said" ] || { echo "ep-admin $*: no reason given"; failed=1; }
	case $said in
	*geheim*) echo "ep-admin $*: shows the password: $said"; failed=1 ;;
	*"cannot be used"*"cannot be used"*) echo "ep-admin $*: says it twice: $said"; failed=1 ;;
	esac
}

expect 1
expect 1 nonsense
expect 1 status 1
expect 1 recover
expect 1 recover x
expect 1 recover 4096
expect 1 extend
expect 1 extend 0
expect 1 extend 3 4
expect 1 retire
expect 1 retire -- -1
expect 1 evict 1 2
expect 1 retire 1 --dead
expect 1 status --wait=soon
expect 1 --no-such-option status
expect 1 --store nonsense://user:geheim@host status
expect "3 4" --store redis+unix:///nonexistent/socket status
expect "3 4" --store redis://user:geheim@127.0.0.1:1/0 status
expect 1 redis://user:geheim@host status
expect 1 extend redis://user:geheim@host

# Whatever stands before an @ is a secret, however the URL is damaged: on no stream and at no level of the log.
for url in 'redis://moe:abc?geheim@127.0.0.1:1' 'redis://moe:abc/geheim@127.0.0.1:1' 'redis://moe:a?rank=geheim@127.0.0.1:1' \
	'redis://geheim:x@127.0.0.1:1' 'redis:/moe:geheim@127.0.0.1:1' 'moe:geheim@127.0.0.1:1' 'redis://moe geheim@127.0.0.1:1' \
	'redis+unix://moe:geheim@/s' 'redis+sentinel://127.0.0.1:1,moe:geheim@127.0.0.1:1/m' 'rediss://geheim@127.0.0.1:1?ca=/nowhere' \
	'redis+sentinel://127.0.0.1:1/geheim@m' 'geheim://x@127.0.0.1:1'; do
	for command in status doctor; do
		said=$(COVEY_LOG=debug COVEY_STORE=$url "$admin" "$command" 2>&1)
		case $said in
		*geheim*) echo "ep-admin $command with COVEY_STORE=$url shows the secret: $said"; failed=1 ;;
		esac
		[ -n "$said" ] || { echo "ep-admin $command with COVEY_STORE=$url says nothing"; failed=1; }
	done
done
# The rank of a large job is no reason to refuse.
export RANK=99 WORLD_SIZE=100
expect "3 4" --store redis+unix:///nonexistent/socket status
exit $failed
