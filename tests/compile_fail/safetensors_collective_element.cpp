// expect: this type has no safetensors dtype
#include "belay/backend/host.hpp"
#include "belay/train/parameter_files.hpp"

struct not_a_number {};

using writer = belay::safetensors::collective_writer<belay::host::group>;

void write(writer& out, std::span<const float> values, std::span<const not_a_number> others) {
  out.write<float>("weight", 0, values);
  static_cast<void>(others);
#ifdef BELAY_BROKEN
  out.write<not_a_number>("weight", 0, others);
#endif
}
