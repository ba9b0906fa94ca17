/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_MANAGER_BACKUP_H
#define TIERCE_CLI_MANAGER_BACKUP_H

/* `tierce manager backup FILE [options]`: argv[1] is "backup". Returns an exit status. */
int tierce__cli_manager_backup(int argc, char **argv);

/* `tierce manager restore FILE [options]`: argv[1] is "restore". */
int tierce__cli_manager_restore(int argc, char **argv);

#endif
