// Which paths this CPU can run.
#include <cstdlib>
#include <cstring>

#include "paths.h"

namespace edge_kit {
namespace {

struct Paths {
  const Kernels* tables[4] = {};  // best first
  const char* names[5] = {};
  int count = 0;

  void append(const Kernels& kernels) {
    tables[count] = &kernels;
    names[count++] = kernels.name;
  }
};

Paths find_paths() {
  Paths paths;
  paths.append(kScalarKernels);
  return paths;
}

const Paths& paths() {
  static const Paths found = find_paths();
  return found;
}

}  // namespace

const Kernels* find_kernels(const char* name) {
  for (int i = 0; i < paths().count; ++i) {
    if (std::strcmp(name, paths().names[i]) == 0) return paths().tables[i];
  }
  return nullptr;
}

const Kernels* best_kernels() {
  const char* wanted = std::getenv("EDGE_KIT_ISA");
  const Kernels* named = wanted ? find_kernels(wanted) : nullptr;
  return named ? named : paths().tables[0];
}

const char* const* available_kernels() { return paths().names; }

}  // namespace edge_kit
