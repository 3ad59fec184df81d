/* SPDX-License-Identifier: Apache-2.0 */
#include "silence.h"

#include <linux/tcp.h> /* of libc lacks the later fields of tcp_info */
#include <netinet/in.h>
#include <sys/socket.h>

int cvy_silent(struct cvy_silence *s, int fd, uint64_t now, uint64_t bound_ns)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	if (now < s->look_ns)
		return 0;
	s->look_ns = now + bound_ns / CVY_SILENCE_LOOKS;
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) || !info.tcpi_unacked || !info.tcpi_snd_wnd ||
	    info.tcpi_bytes_acked != s->acked)
		s->still = 0;
	else
		s->still++;
	s->acked = info.tcpi_bytes_acked;
	return s->still >= CVY_SILENCE_LOOKS;
}
