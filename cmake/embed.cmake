# SPDX-License-Identifier: Apache-2.0
#
# cmake -DIN=PART;... -DTEXT=store.lua -DOUT=store_lua.c -P embed.cmake: joins the parts of the script; its text as a C
# array of bytes (a string literal would be longer than C promises to take) and its SHA-1, by which Redis knows it.
execute_process(COMMAND ${CMAKE_COMMAND} -E cat ${IN} OUTPUT_FILE ${TEXT} COMMAND_ERROR_IS_FATAL ANY)
file(READ ${TEXT} bytes HEX)
file(SHA1 ${TEXT} sha1)
string(REGEX REPLACE "(................................)" "\\1\n\t" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "/* Made from src/membership/store by embed.cmake. */
extern const char cvy_store_lua[];
extern const char cvy_store_sha1[];
const char cvy_store_lua[] = {\n\t${bytes}0x00\n};
const char cvy_store_sha1[] = \"${sha1}\";
")
