/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin whose variable of a thread can stand only in static TLS: it takes HOG bytes of the room that late libraries share. */
static __thread char room[HOG] __attribute__((tls_model("initial-exec")));

char *hog(int i);

char *hog(int i)
{
	return room + i;
}
