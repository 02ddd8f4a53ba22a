# find_package(edge_kit) gives the target edge_kit::edge_kit: the header and the shared library beside this folder,
# in a checkout that was built and in an installed wheel alike.

get_filename_component(edge_kit_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(edge_kit_library "${edge_kit_root}/${CMAKE_SHARED_LIBRARY_PREFIX}edge_kit${CMAKE_SHARED_LIBRARY_SUFFIX}")
if(NOT EXISTS "${edge_kit_library}")
  set(edge_kit_FOUND FALSE)
  set(edge_kit_NOT_FOUND_MESSAGE
      "${edge_kit_library} does not exist: build it with 'python -m lite_runtime.build', or install a wheel of this system")
  return()
endif()

if(NOT TARGET edge_kit::edge_kit)
  add_library(edge_kit::edge_kit SHARED IMPORTED)
  set_target_properties(edge_kit::edge_kit PROPERTIES
    IMPORTED_LOCATION "${edge_kit_library}"
    INTERFACE_INCLUDE_DIRECTORIES "${edge_kit_root}/include")
endif()
