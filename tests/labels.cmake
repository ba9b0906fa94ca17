# Labels that say more than what kind of test it is; see SELECTED in tools/run_tests.

# Run once, without a sanitizer: nothing of ours in C runs in them, or a sanitizer would be in the way.
# test_nixl_connector: its code runs with sanitizers in test_nixl and test_file_connector.
set(TIERCE_TESTS_PLAIN test_build_kernels test_layers test_rehearsal test_setup test_install test_nixl_connector)

# Compiled for another processor, without a sanitizer, and run by an emulator.
list(APPEND TIERCE_TESTS_PLAIN test_cachegen_arm test_codec_arm test_copy_sum_arm test_frozen_codec_arm test_lossy_arm)

# Without threads of their own or of ours: the thread sanitizer has nothing to see in them. And test_device_faults_native, whose
# hundreds of processes take minutes with it; test_device_faults has the same cases in one process.
# test_device_cells is about bytes, and takes minutes with it. test_device_kv_copiers and test_device_faults_copiers run the
# cases of test_device_kv and test_device_faults with more threads; test_device_kv_* have the threads of the other kinds of
# memory, whose faults (test_device_faults_direct, _staged, _unpinned) run with the address sanitizer.
# test_sim_store, test_sim_node, test_sim_fleet and test_sim_peers run one thread at a time, in an order that they draw themselves.
# test_device_kv_direct: its threads are those of test_device_kv_staged, which copies once more. test_engine_uses_native and
# test_slow_remote_native: their threads are those of test_engine_uses, test_slow_remote and the other tests of a node's clients
# (test_storing_native, test_replicas_native, test_engine_native).
set(TIERCE_TESTS_SINGLE
    prop_paged test_arena test_asks test_autopilot test_base test_beneath test_block_answers test_chain
    test_check_main test_chunk_header test_cli_basics test_controller test_cli_doctor test_cli_migrate test_cli_optimize test_cli_optimize_money
    test_cli_optimize_sim test_cli_report test_cli_size test_cli_trace test_config test_copy_sum test_copy_sum_kernel test_decode_kernel
    test_cuda_calls test_deadlines test_device_cells test_device_faults test_device_faults_direct
    test_device_faults_native test_device_faults_staged test_device_faults_unpinned test_device_kv test_device_kv_direct
    test_directory test_directory_limits
    test_engine_config test_engine_uses_native test_families test_fleet_register test_fleet_register_times test_follower test_forget test_frozen_abi
    test_frozen_manager test_frozen_native test_ghost_curve test_grants test_grpc_frame test_hazard test_hazard_index test_holdings_fleet test_holes test_hybrid
    test_hybrid_replay test_index test_intern test_json test_json_value test_json_write test_key_text test_kv_event test_kv_shape test_kvcm
    test_lm test_lmcache_hash test_manager_config test_map test_mix test_model test_model_fields test_moves
    test_namespace test_native test_node_users test_numa test_open test_option_table test_paged test_pilot
    test_policy_conformance test_policy_lru test_profiles test_prometheus test_prop_curve test_prop_directory
    test_prop_flat test_prop_index test_prop_key test_prop_kvcm test_prop_places test_prop_policy test_prop_pool
    test_prop_replay test_prop_router test_prop_space test_prop_tiers test_prop_trace_write test_proto test_probes test_proxy_parts test_reclaimer test_record
    test_registry_whole test_resp_cluster test_resp_parse test_resp_request test_rpcs test_s3_parts test_scrub_set
    test_serve_torture test_sha256 test_siblings test_sim_fleet test_sim_manager test_sim_node test_sim_peers test_sim_store test_slow_remote_native test_tenant_words test_space test_spans test_speed test_storage_at
    test_storage_redis test_tls test_trace_conformance test_trace_formats test_trace_input test_trace_order test_transfer_wire
    test_trial test_tuner test_url test_utf8 test_why_prompt test_worker_commands)

# These start no threads, or those of the library only, which other tests use from several at once: the command line (those of
# its servers and engines), files and RocksDB (test_disk_conformance, test_disk_files, test_meta_store), policies of an engine
# (test_engine, test_prop_objects), objects of an engine (test_objects, test_tombstones), a node (test_node_native,
# test_node_uploads), its client (test_client_cuts), stores (the test of each connector, test_fleet), devices (test_device,
# test_device_order, test_device_several, test_device_kv_copiers, test_device_kv_native), codecs (test_coded_tier).
list(APPEND TIERCE_TESTS_SINGLE test_cli_ctl test_cli_inspect test_cli_top test_cli_why test_killed
    test_disk_full test_disk_journal test_meta_rocksdb
    test_engine_uses test_prop_orphans test_prop_sibling
    test_object_replace
    test_node_damage test_client_lies
    test_fleet_stores test_s3_login
    test_device_cuda test_device_faults_copiers test_device_kernel test_device_kv_staged
    test_coded_encryption)
list(APPEND TIERCE_TESTS_SINGLE test_rope test_rotate test_blend_select test_segments)
list(APPEND TIERCE_TESTS_SINGLE test_coded test_coded_range test_coded_speed test_nixl_ranges test_object_form test_seal test_codec test_frozen_codec test_lossy test_cachegen
     test_handover_filling test_handover_parts test_heads)

# Left out of `make test FAST=1`: more than ten seconds without a sanitizer.
set(TIERCE_TESTS_SLOW
    test_cli_live test_client_cuts test_client_lies test_elector test_locator_threads
    test_meta_redis_cluster test_meta_rocksdb test_meta_store test_mooncake
    test_mooncake_connector test_redis test_redis_failover test_s3_connector test_s3_login
    test_scarce test_slow_remote test_slow_remote_native test_torture_device)

# Long with a sanitizer. Of several tests at once these begin first, after those with long limits.
set(TIERCE_TESTS_EARLY
    test_access_log test_autopilot test_cli_basics test_cli_optimize test_cli_top test_device test_device_cuda
    test_device_faults test_device_faults_copiers test_device_kernel test_device_kv_native
    test_directory test_directory_limits test_engine_uses test_engine_uses_native test_fleet_connector test_ghost_curve test_node_small
    test_redis_connector test_smalls test_tierce_connector test_trial)
