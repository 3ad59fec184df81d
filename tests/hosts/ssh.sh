#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ep-run --hosts over ssh: ssh.sh EP_RUN JOB
# First over a script in the place of ssh, which gives each rank a session of its own as sshd does. Then, as root and
# where there is one, over a real sshd of our own.
set -eu
run=$1 job=$2
command -v redis-server >/dev/null || { echo "skipped: no redis-server"; exit 77; }
where=$(mktemp -d)
sshd=
clean()
{
	[ -z "$sshd" ] || kill "$sshd" 2>/dev/null || true
	rm -rf "$where"
}
trap clean EXIT
trap 'exit 1' INT TERM
unset COVEY_STORE COVEY_GROUP COVEY_MAX_RANKS COVEY_HOST COVEY_CREATE
export COVEY_HANG_MS=20000 COVEY_LINK_MS=5000 # a machine under load is no death

cat >"$where/fake" <<'END'
#!/bin/sh
[ $# = 2 ] || exit 99
env -i PATH="$PATH" HOME=/ FAR="$1" setsid -w sh -c "$2"
END
chmod +x "$where/fake"

wanted()
{
	echo "$out" | grep -q -e "$1" || { echo "missing: $1 in:"; echo "$out"; exit 1; }
}

# The name of a host is never an option of ssh.
mkdir "$where/bin"
printf '#!/bin/sh\necho "ssh $1 $2 $3 $4" >&2\n' >"$where/bin/ssh"
chmod +x "$where/bin/ssh"
PATH="$where/bin:$PATH" "$run" -n 1 --hosts alpha --address 127.0.0.1 -- true 2>&1 | grep -q 'ssh -o BatchMode=yes -- alpha' ||
	{ echo "no -- before the host"; exit 1; }

# over WORDS...: all of it by these words in the place of ssh
over()
{
	# A group over two hosts, with the numbers of ranks that were asked for; 127.0.0.1 is the address of the store.
	out=$("$run" --hosts alpha,beta:3 --address 127.0.0.1 --ssh "$*" -- "$job" 2>&1)
	for want in '^\[0\] sum 4 mask f host alpha$' '^\[1\] sum 4 mask f host beta$' '^\[3\] sum 4 mask f host beta$'; do
		wanted "$want"
	done
	# A rank dies there: its signal is told, the others go on.
	out=$("$run" -n 3 --hosts alpha,beta --address 127.0.0.1 --ssh "$*" -- sh -c \
		"[ \$RANK != 1 ] || export JOB_VICTIM=1; exec $job" 2>&1)
	wanted '^\[0\] sum 2 mask 5 host alpha$'
	wanted 'rank 1 was killed by signal 9'
	# Words come through whole, in this directory; no password stands in a list of processes.
	# shellcheck disable=SC2016
	out=$(COVEY_STORE_PASSWORD="it's \$x" "$run" -n 1 --hosts alpha --address 127.0.0.1 --ssh "$*" -- sh -c \
		'echo "<$1><$COVEY_STORE_PASSWORD> $(pwd)"; pass=${COVEY_STORE#*default:}; pass=${pass%%@*}
		[ ${#pass} = 64 ] || echo "no password"
		case $(cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\0" " ") in *"$pass"*) echo "in a list" ;; esac' sh "a  'b" 2>&1)
	wanted "^\[0\] <a  'b><it's \$x> $(pwd)\$"
	case $out in
	*"no password"* | *"in a list"*) echo "$out"; exit 1 ;;
	esac
	# A code, and a signal to ep-run that a rank may catch.
	code=0
	"$run" -n 2 --hosts alpha,beta --address 127.0.0.1 --ssh "$*" -- sh -c 'exit 7' 2>/dev/null || code=$?
	[ $code = 7 ] || { echo "exit 7 became $code"; exit 1; }
	mkfifo "$where/fifo"
	"$run" -n 2 --hosts alpha,beta --address 127.0.0.1 --ssh "$*" -- sh -c \
		'trap "echo caught; exit 0" TERM; echo ready; while :; do sleep 0.05; done' >"$where/fifo" 2>&1 &
	pid=$!
	out=
	while read -r line; do
		out="$out$line
"
		[ "$(echo "$out" | grep -c ready)" != 2 ] || [ "$line" = "${line%ready}" ] || kill -TERM $pid
	done <"$where/fifo"
	wait $pid || { echo "ep-run ended badly after SIGTERM: $out"; exit 1; }
	[ "$(echo "$out" | grep -c caught)" = 2 ] || { echo "SIGTERM did not come through: $out"; exit 1; }
	rm "$where/fifo"
	# ep-run is killed: the ranks end, though they are no descendants of it.
	# shellcheck disable=SC2016
	"$run" -n 2 --hosts alpha,beta --address 127.0.0.1 --ssh "$*" -- sh -c \
		'echo $$ >"$1/rank$RANK"; exec sleep 600' sh "$where" >/dev/null 2>&1 &
	pid=$!
	waits=0
	until [ -s "$where/rank0" ] && [ -s "$where/rank1" ]; do
		waits=$((waits + 1))
		[ $waits -lt 600 ] || { echo "the ranks do not start"; exit 1; }
		sleep 0.05
	done
	kill -KILL $pid
	wait $pid || true
	for rank in "$(cat "$where/rank0")" "$(cat "$where/rank1")"; do
		while kill -0 "$rank" 2>/dev/null; do
			waits=$((waits + 1))
			[ $waits -lt 1200 ] || { echo "rank $rank outlived ep-run"; exit 1; }
			sleep 0.05
		done
	done
	rm "$where/rank0" "$where/rank1"
}

over "$where/fake"
echo "over a stand-in: passed"

if ! command -v sshd >/dev/null || ! command -v ssh-keygen >/dev/null || [ "$(id -u)" != 0 ] ||
	! mkdir -p /run/sshd; then
	echo "over sshd: not done, there is none or we are not root"
	exit 0
fi
ssh-keygen -q -t ed25519 -N '' -f "$where/host"
ssh-keygen -q -t ed25519 -N '' -f "$where/user"
cat >"$where/config" <<END
ListenAddress 127.0.0.1
HostKey $where/host
AuthorizedKeysFile $where/user.pub
PidFile $where/pid
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
MaxStartups 100
END
for port in 22922 22923 22924 22925; do
	"$(command -v sshd)" -D -f "$where/config" -p $port 2>"$where/log" &
	sshd=$!
	tries=0
	while kill -0 $sshd 2>/dev/null && [ ! -s "$where/pid" ] && [ $tries -lt 1200 ]; do
		tries=$((tries + 1))
		sleep 0.05
	done
	[ ! -s "$where/pid" ] || break
done
cat >"$where/ssh" <<END
#!/bin/sh
exec ssh -F none -i $where/user -p $port -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
	-o LogLevel=ERROR -o Hostname=127.0.0.1 "\$@"
END
chmod +x "$where/ssh"
if ! "$where/ssh" alpha true 2>"$where/log"; then
	echo "over sshd: not done, it does not let us in: $(cat "$where/log")"
	exit 0
fi
over "$where/ssh"
echo "over sshd: passed"
