# The sources of tierce._core, for the extension module and for the one of the tests.
set(TIERCE_CORE_SOURCES core.c core_blend.c core_chain.c core_engine.c core_events.c core_handover.c core_jobs.c core_prefetch.c
    core_push.c core_transfer.c core_view.c)
list(TRANSFORM TIERCE_CORE_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
