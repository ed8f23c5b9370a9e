/* What reading a mapped file raises when another program has cut it: a signal that no Python code can handle,
   because the read would only begin again. The command line asks for a line of its own and an end. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 4096 };

static char message[MESSAGE_BYTES];
static size_t message_bytes;

static void print_and_exit(int number) {
    (void)number;
    if (write(STDERR_FILENO, message, message_bytes) < 0) _exit(1);
    _exit(1);
}

/* From now on a bus error prints `text` on stderr and ends the process with status 1. */
__attribute__((visibility("default"))) void gptcli_exit_on_bus_error(const char *text) {
    message_bytes = strnlen(text, MESSAGE_BYTES - 1);
    memcpy(message, text, message_bytes);
    struct sigaction action = {.sa_handler = print_and_exit};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
