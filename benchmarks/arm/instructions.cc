// A plugin of qemu-user: counts the instructions that a program executes, and can keep their order.
//
//   qemu-aarch64 -plugin instructions.so,count=FILE[,trace=FILE] PROGRAM...
// count: the number as text. trace: pairs of 64-bit words for each block of instructions executed, in order:
// its address and its number of instructions.
//
// Debian ships no qemu-plugin.h, so what is used of it is declared here: names and types as QEMU documents
// its plugin interface (docs/devel/tcg-plugins), unchanged from version 1 on. PLUGIN_VERSION is the interface's
// version that the qemu at hand accepts.
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <deque>

extern "C" {

using PluginId = uint64_t;
struct qemu_plugin_tb;    // a block of instructions that is left at its end alone
struct QemuInfo;          // not looked at
enum CallbackFlags { kNoRegisters = 0 };

size_t qemu_plugin_tb_n_insns(const qemu_plugin_tb* block);
uint64_t qemu_plugin_tb_vaddr(const qemu_plugin_tb* block);
void qemu_plugin_register_vcpu_tb_trans_cb(PluginId id, void (*translated)(PluginId, qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_cb(qemu_plugin_tb* block, void (*executed)(unsigned, void*),
                                          CallbackFlags flags, void* data);
void qemu_plugin_register_atexit_cb(PluginId id, void (*at_exit)(PluginId, void*), void* data);

}  // extern "C"

namespace {

struct Block {
  uint64_t address, instructions;
};

std::deque<Block> blocks;  // of all translations; references stay valid
uint64_t executed_instructions = 0;
const char* count_path = nullptr;
std::FILE* trace = nullptr;

// The programs counted have one thread.
void executed(unsigned, void* data) {
  const Block& block = *static_cast<const Block*>(data);
  executed_instructions += block.instructions;
  if (trace) std::fwrite(&block, sizeof block, 1, trace);
}

void translated(PluginId, qemu_plugin_tb* block) {
  blocks.push_back({qemu_plugin_tb_vaddr(block), qemu_plugin_tb_n_insns(block)});
  qemu_plugin_register_vcpu_tb_exec_cb(block, executed, kNoRegisters, &blocks.back());
}

void at_exit(PluginId, void*) {
  if (trace) std::fclose(trace);
  std::FILE* file = std::fopen(count_path, "w");
  if (!file) return;  // whoever reads the count misses it
  std::fprintf(file, "%" PRIu64 "\n", executed_instructions);
  std::fclose(file);
}

// The value of `key=value` in a copy that lives as long as the process, null for another key.
const char* value_of(const char* argument, const char* key) {
  const size_t length = std::strlen(key);
  const bool found = std::strncmp(argument, key, length) == 0 && argument[length] == '=';
  return found ? strdup(argument + length + 1) : nullptr;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
__attribute__((visibility("default"))) int qemu_plugin_version = PLUGIN_VERSION;
}

EXPORT int qemu_plugin_install(PluginId id, const QemuInfo*, int argc, char** argv) {
  for (int i = 0; i < argc; ++i) {
    if (const char* path = value_of(argv[i], "count")) count_path = path;
    if (const char* path = value_of(argv[i], "trace")) {
      trace = std::fopen(path, "wb");
      if (!trace) return 1;
    }
  }
  if (!count_path) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, at_exit, nullptr);
  return 0;
}
