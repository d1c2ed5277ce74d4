/* log.h - messages for the person at the terminal or the server's log, on stderr, one line each. */
#ifndef MX_BASE_LOG_H
#define MX_BASE_LOG_H

typedef enum { MX_LOG_ERROR, MX_LOG_WARN, MX_LOG_INFO, MX_LOG_DEBUG } mx_log_level;

void mx_log_set_level(mx_log_level level); // MX_LOG_WARN until set
mx_log_level mx_log_get_level(void);
void mx_log(mx_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
