// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// checkpoint_files write|read <folder> <MiB>
//
// For bench/checkpoint.py. `write` writes so many MiB of state into the folder by belay::checkpoint_writer, with
// checksums, until they are on the medium, and then the manifest, which makes it a checkpoint. `read` drops the file
// from the page cache and reads all tensors by belay::checkpoint_reader, verified. Prints the seconds of either; memory
// is there before.
#include <fcntl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/belay.hpp"

namespace {

constexpr std::size_t tensor_mib = 16, tensor_bytes = tensor_mib << 20U, values = tensor_bytes / sizeof(float);

double seconds_of(auto&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Bytes that no medium can compress.
void fill(std::span<std::byte> state) {
  std::uint64_t next = 88172645463325252U;
  for (std::size_t i = 0; i + sizeof next <= state.size(); i += sizeof next) {
    next ^= next << 13U;
    next ^= next >> 7U;
    next ^= next << 17U;
    std::memcpy(state.data() + i, &next, sizeof next);
  }
}

double timed_write(const std::string& folder, std::span<std::byte> state) {
  fill(state);
  belay::manifest content;
  content.id = std::string(16, '1');
  content.step = 1;
  std::vector<belay::safetensors::declaration> declarations;
  for (std::size_t i = 0; i < state.size() / tensor_bytes; ++i)
    declarations.push_back(
        {std::string("tensor.") + std::to_string(i), belay::safetensors::stored_type::f32, {values}});
  const std::string name = belay::checkpoint_file_name("parameters", 0);
  const belay::where here;
  const auto placed = belay::safetensors::lay_out(
      declarations,
      {{"format", "belay"}, {"checkpoint", content.id}, {"step", belay::padded_step(content.step)}, {"file", name}},
      here);
  belay::file_to_write file{folder + "/" + name, {}, placed.file_bytes(), {}};
  file.segments.emplace_back(std::as_bytes(std::span(placed.prefix)));
  for (std::size_t i = 0; i < declarations.size(); ++i) {
    file.segments.emplace_back(state.subspan(i * tensor_bytes, tensor_bytes));
    belay::manifest_piece piece;
    piece.part = belay::value_part;
    piece.begin = placed.prefix.size() + placed.tensors[i].begin;
    piece.box.sides = {{0, values}};
    piece.count = values;
    content.tensors.push_back({declarations[i].name, {values}, {piece}});
  }
  std::vector<std::byte> ring(belay::checkpoint_writer<>::memory_bytes(0));
  belay::checkpoint_writer<> writer{std::span(ring)};
  const double seconds = seconds_of([&] {
    writer.start({std::move(file)}, folder, here);
    writer.wait_done();
  });
  if (const auto problem = writer.problem()) throw *problem;
  content.files.push_back({name, placed.file_bytes(), writer.files()[0].checksums});
  const auto out = belay::safetensors::file::create_new(folder + "/" + std::string(belay::manifest_name), here);
  const std::string text = belay::manifest_text::of(content);
  out.write(0, std::as_bytes(std::span<const char>(text)), here);
  return seconds;
}

double timed_read(const std::string& folder, std::span<std::byte> state) {
  const belay::safetensors::file file(folder + "/" + belay::checkpoint_file_name("parameters", 0), O_RDONLY, {});
  // Nothing of it is dirty: it was written with fsync.
  const belay::unique_fd descriptor(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC));
  if (const int number = ::posix_fadvise(descriptor.get(), 0, 0, POSIX_FADV_DONTNEED); number != 0)
    throw std::runtime_error(std::string("posix_fadvise: ") + belay::safetensors::reason(number));
  std::memset(state.data(), 1, state.size());
  const double seconds = seconds_of([&] {
    belay::checkpoint_reader<> in(folder);
    std::size_t done = 0;
    for (const belay::manifest_tensor& each : in.content().tensors) {
      const std::span<float> to(reinterpret_cast<float*>(state.data() + done), values);
      in.read(each, belay::value_part, 0, to);
      done += tensor_bytes;
    }
    if (done != state.size()) throw std::runtime_error(folder + " holds another number of bytes");
  });
  std::vector<std::byte> expected(tensor_bytes);
  fill(expected);
  if (std::memcmp(state.data(), expected.data(), tensor_bytes) != 0) throw std::runtime_error("read something else");
  return seconds;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string what(argc == 4 ? argv[1] : "");
  const std::size_t mib = argc == 4 ? std::strtoul(argv[3], nullptr, 10) : 0;
  if ((what != "write" && what != "read") || mib == 0 || mib % tensor_mib != 0)
    return std::fprintf(stderr, "checkpoint_files write|read FOLDER MIB, a multiple of %zu\n", tensor_mib), 2;
  belay::host_pages memory(mib << 20U);
  const std::span<std::byte> state(memory.data(), mib << 20U);
  const std::string folder(argv[2]);
  std::printf("%.6f\n", what == "write" ? timed_write(folder, state) : timed_read(folder, state));
  return 0;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "checkpoint_files: %s\n", problem.what());
  return 1;
}
