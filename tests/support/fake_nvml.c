/* A test double of libnvidia-ml.so.1, at the library's edge: the real nvidia-ml-py calls it, and a text file is the hardware.
 *
 * $FAKE_NVML_STATE names a file of lines `KEY VALUE`. It is looked at in every call and read again when it changed, so that a test flips a
 * GPU's state while a job runs. Replace it by rename. Keys, where N is a GPU's number or `all`:
 *
 *   count 8                      GPUs (up to 16)                 init_error 18          what nvmlInit answers
 *   N.KEY 93                     a value (see below)             driver 580.95.05
 *   N.err.FUNCTION 3             one call of one GPU fails with this code
 *   N.lost 1                     every call of that GPU answers GPU_IS_LOST (15), as do its fields
 *   N.hang_ms.FUNCTION 60000     that call sleeps first          N.stuck_ms.FUNCTION   the same in state D (the parent of a vfork)
 *   absent.FUNCTION 1            FUNCTION_NOT_FOUND (13), which nvidia-ml-py says itself where an old driver has no such symbol
 *   N.field.ID 1                 one field value                 N.field.ID.LINK 1      one of an NVLink
 *   N.nvlinks 18                 links; N.nvlink.L 0 is down     pair.A.B.level 20      pair.A.B.nvlink 0   pair.A.B.read 0   (A < B)
 *   N.procs 123:1048576,456:0    processes and their bytes
 *   calls /a/file                to which Init, EventSetCreate and EventSetFree are written, a line each
 *   events 0:8:79,1:8:31         GPU:TYPE:DATA, delivered once each, in order, as the list grows
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int result;
typedef unsigned int u32;
typedef unsigned long long u64;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, TOO_SMALL = 7, TIMEOUT = 10, NO_FUNCTION = 13, LOST = 15, OLD_STRUCT = 25 };
enum { MOST_KEYS = 4096, MOST_GPUS = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char *key, *value; } rows[MOST_KEYS];
static size_t n_rows;
static char *text;
static struct timespec changed;
static ino_t inode;
static off_t length;
static int opened;
static u64 events_seen;

/* ---- the state file ---- */
static int by_key(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void load(void) {
  const char *path = getenv("FAKE_NVML_STATE");
  struct stat now;
  if (!path || stat(path, &now)) return;
  if (now.st_ino == inode && now.st_size == length && now.st_mtim.tv_sec == changed.tv_sec && now.st_mtim.tv_nsec == changed.tv_nsec) return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  char *read = calloc(1, (size_t)now.st_size + 1);
  size_t got = fread(read, 1, (size_t)now.st_size, file);
  read[got] = 0;
  fclose(file);
  free(text);
  text = read;
  n_rows = 0;
  char *save, *line = strtok_r(text, "\n", &save);
  for (; line && n_rows < MOST_KEYS; line = strtok_r(0, "\n", &save)) {
    char *blank = strchr(line, ' ');
    if (!blank) continue;
    *blank = 0;
    rows[n_rows].key = line;
    rows[n_rows++].value = blank + 1;
  }
  qsort(rows, n_rows, sizeof rows[0], by_key);
  inode = now.st_ino, length = now.st_size, changed = now.st_mtim;
}

/* Copies the value of a key. Returns whether there is one. */
static int find(const char *key, char *out, size_t size) {
  pthread_mutex_lock(&lock);
  load();
  size_t low = 0, high = n_rows;
  int found = 0;
  while (low < high) {
    size_t middle = (low + high) / 2;
    int order = strcmp(key, rows[middle].key);
    if (!order) {
      snprintf(out, size, "%s", rows[middle].value);
      found = 1;
      break;
    }
    if (order < 0) high = middle; else low = middle + 1;
  }
  pthread_mutex_unlock(&lock);
  return found;
}
static u64 number(const char *key, u64 otherwise) {
  char value[64];
  return find(key, value, sizeof value) ? strtoull(value, 0, 0) : otherwise;
}
static int find_of(u32 gpu, const char *key, char *out, size_t size) {
  char whole[160];
  snprintf(whole, sizeof whole, "%u.%s", gpu, key);
  if (find(whole, out, size)) return 1;
  snprintf(whole, sizeof whole, "all.%s", key);
  return find(whole, out, size);
}
static u64 number_of(u32 gpu, const char *key, u64 otherwise) {
  char value[64];
  return find_of(gpu, key, value, sizeof value) ? strtoull(value, 0, 0) : otherwise;
}
static u64 numbered(u32 gpu, const char *format, u32 which, u64 otherwise) {
  char key[96];
  snprintf(key, sizeof key, format, which);
  return number_of(gpu, key, otherwise);
}

/* ---- what every call of a GPU goes through ---- */
static void doze(u64 ms) {
  struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000L};
  while (nanosleep(&left, &left)) {}
}
static result gate(void *handle, const char *function, u32 *gpu) {
  char key[160];
  if (!opened) return UNINITIALIZED;
  if (!handle || (uintptr_t)handle > MOST_GPUS) return INVALID;
  *gpu = (u32)(uintptr_t)handle - 1; /* so that NULL is no handle */
  snprintf(key, sizeof key, "absent.%s", function);
  if (number(key, 0)) return NO_FUNCTION;
  snprintf(key, sizeof key, "hang_ms.%s", function);
  u64 ms = number_of(*gpu, key, 0);
  if (ms) doze(ms);
  snprintf(key, sizeof key, "stuck_ms.%s", function);
  ms = number_of(*gpu, key, 0);
  if (ms && vfork() == 0) { /* who called vfork sleeps in the kernel until its child is gone */
    doze(ms);
    _exit(0);
  }
  if (number_of(*gpu, "lost", 0)) return LOST;
  snprintf(key, sizeof key, "err.%s", function);
  return (result)number_of(*gpu, key, 0);
}
#define GPU(handle)                                                                                                                        \
  u32 gpu;                                                                                                                                 \
  result refused = gate(handle, __func__, &gpu);                                                                                           \
  if (refused) return refused
#define NUMBER(function, key, otherwise)                                                                                                   \
  result function(void *handle, u32 *out) {                                                                                                \
    GPU(handle);                                                                                                                           \
    *out = (u32)number_of(gpu, key, otherwise);                                                                                            \
    return OK;                                                                                                                             \
  }
#define TEXT(function, key, ...)                                                                                                           \
  result function(void *handle, char *out, u32 size) {                                                                                     \
    GPU(handle);                                                                                                                           \
    if (!find_of(gpu, key, out, size)) snprintf(out, size, __VA_ARGS__);                                                                   \
    return OK;                                                                                                                             \
  }

static void note(const char *function) {
  char path[256];
  if (!find("calls", path, sizeof path)) return;
  FILE *file = fopen(path, "a");
  if (!file) return;
  fprintf(file, "%s\n", function);
  fclose(file);
}

/* ---- the library and its GPUs ---- */
result nvmlInitWithFlags(u32 flags) {
  (void)flags;
  note("Init");
  result refused = (result)number("init_error", 0);
  if (!refused) opened++;
  return refused;
}
result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
result nvmlShutdown(void) {
  if (!opened) return UNINITIALIZED;
  opened--;
  return OK;
}
const char *nvmlErrorString(result code) { return code == OK ? "Success" : "Unknown Error"; }
result nvmlSystemGetDriverVersion(char *out, u32 size) {
  if (!find("driver", out, size)) snprintf(out, size, "580.95.05");
  return OK;
}
result nvmlDeviceGetCount_v2(u32 *count) {
  if (!opened) return UNINITIALIZED;
  *count = (u32)number("count", 0);
  return OK;
}
result nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle) {
  if (!opened) return UNINITIALIZED;
  if (index >= number("count", 0)) return INVALID;
  result refused = (result)number_of(index, "err.nvmlDeviceGetHandleByIndex_v2", 0);
  *handle = (void *)(uintptr_t)(index + 1);
  return refused;
}
TEXT(nvmlDeviceGetName, "name", "%s", "FAKE H100 80GB HBM3")
TEXT(nvmlDeviceGetUUID, "uuid", "GPU-00000000-0000-4000-8000-%012u", gpu)
TEXT(nvmlDeviceGetVbiosVersion, "vbios", "%s", "96.00.A5.00.01")
result nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  GPU(handle);
  u64 value = number_of(gpu, "capability", 90);
  *major = (int)(value / 10);
  *minor = (int)(value % 10);
  return OK;
}
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } pci;
result nvmlDeviceGetPciInfo_v3(void *handle, pci *out) {
  GPU(handle);
  memset(out, 0, sizeof *out);
  out->bus = (u32)number_of(gpu, "bus", 16 + gpu);
  out->id = 0x233010de;
  snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
  snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
  return OK;
}

/* ---- heat, clocks, power, PCIe ---- */
typedef struct { u32 version; int degrees; } margin;
result nvmlDeviceGetMarginTemperature(void *handle, margin *out) {
  GPU(handle);
  char value[64];
  if (!find_of(gpu, "margin", value, sizeof value)) return UNSUPPORTED;
  out->degrees = atoi(value);
  return OK;
}
result nvmlDeviceGetTemperature(void *handle, int sensor, u32 *out) {
  GPU(handle);
  (void)sensor;
  *out = (u32)number_of(gpu, "temperature", 41);
  return OK;
}
result nvmlDeviceGetTemperatureThreshold(void *handle, u32 which, u32 *out) {
  GPU(handle);
  static const u32 usual[] = {92, 89, 95, 87};
  u64 value = numbered(gpu, "temperature_limit.%u", which, which < 4 ? usual[which] : 0);
  *out = (u32)value;
  return value ? OK : UNSUPPORTED;
}
result nvmlDeviceGetCurrentClocksEventReasons(void *handle, u64 *out) { GPU(handle); *out = number_of(gpu, "throttle", 1); return OK; }
result nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *out) { GPU(handle); *out = number_of(gpu, "throttle", 1); return OK; }
result nvmlDeviceGetClockInfo(void *handle, int kind, u32 *out) { GPU(handle); (void)kind; *out = (u32)number_of(gpu, "clock", 1980); return OK; }
result nvmlDeviceGetMaxClockInfo(void *handle, int kind, u32 *out) { GPU(handle); (void)kind; *out = (u32)number_of(gpu, "clock_max", 1980); return OK; }
typedef struct { u32 gpu, memory; } utilization;
result nvmlDeviceGetUtilizationRates(void *handle, utilization *out) {
  GPU(handle);
  out->gpu = (u32)number_of(gpu, "busy", 0);
  out->memory = (u32)number_of(gpu, "memory_busy", 0);
  return OK;
}
NUMBER(nvmlDeviceGetPowerUsage, "power", 350000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit", 700000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default", 700000)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays", 0)
NUMBER(nvmlDeviceGetPersistenceMode, "persistence", 1)
result nvmlDeviceGetMigMode(void *handle, u32 *now, u32 *pending) {
  GPU(handle);
  *now = (u32)number_of(gpu, "mig", 0);
  *pending = (u32)number_of(gpu, "mig_pending", *now);
  return OK;
}

/* ---- memory ---- */
result nvmlDeviceGetEccMode(void *handle, u32 *now, u32 *pending) {
  GPU(handle);
  *now = (u32)number_of(gpu, "ecc", 1);
  *pending = (u32)number_of(gpu, "ecc_pending", *now);
  return OK;
}
result nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, u64 *out) {
  GPU(handle);
  static const char *const keys[2][2] = {{"ecc_cor_vol", "ecc_cor_agg"}, {"ecc_unc_vol", "ecc_unc_agg"}};
  *out = number_of(gpu, keys[kind & 1][counter & 1], 0);
  return OK;
}
typedef struct {
  u32 version;
  u64 agg_parity, agg_secded, agg_corrected, vol_parity, vol_secded, vol_corrected, l2, sm, pcie, mcu, other;
  u32 exceeded;
} sram;
result nvmlDeviceGetSramEccErrorStatus(void *handle, sram *out) {
  GPU(handle);
  out->agg_parity = number_of(gpu, "sram_agg", 0);
  out->vol_parity = number_of(gpu, "sram_vol", 0);
  out->exceeded = (u32)number_of(gpu, "sram_exceeded", 0);
  return OK;
}
result nvmlDeviceGetRemappedRows(void *handle, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failure) {
  GPU(handle);
  *corrected = (u32)number_of(gpu, "remap_cor", 0);
  *uncorrected = (u32)number_of(gpu, "remap_unc", 0);
  *pending = (u32)number_of(gpu, "remap_pending", 0);
  *failure = (u32)number_of(gpu, "remap_failure", 0);
  return OK;
}
/* Pages only where the test gives them: Ampere and later have rows instead. */
result nvmlDeviceGetRetiredPages(void *handle, u32 cause, u32 *count, u64 *addresses) {
  GPU(handle);
  u64 pages = numbered(gpu, "retired.%u", cause, ~0ULL);
  if (pages == ~0ULL) return UNSUPPORTED;
  u32 room = *count;
  *count = (u32)pages;
  if (room < pages) return TOO_SMALL;
  for (u32 i = 0; addresses && i < pages; i++) addresses[i] = 0x1000ULL * (i + 1);
  return OK;
}
result nvmlDeviceGetRetiredPagesPendingStatus(void *handle, u32 *out) {
  GPU(handle);
  char value[16];
  if (!find_of(gpu, "retired_pending", value, sizeof value)) return UNSUPPORTED;
  *out = (u32)strtoul(value, 0, 0);
  return OK;
}
typedef struct { u64 total, free, used; } memory;
result nvmlDeviceGetMemoryInfo(void *handle, memory *out) {
  GPU(handle);
  out->total = number_of(gpu, "memory_total", 85520809984ULL);
  out->used = number_of(gpu, "memory_used", 0);
  out->free = out->total - out->used;
  return OK;
}
typedef struct { u32 pid; u64 used; u32 instance, compute; } process;
result nvmlDeviceGetComputeRunningProcesses_v3(void *handle, u32 *count, process *out) {
  GPU(handle);
  char list[2048], *save;
  u32 found = 0, room = *count;
  if (find_of(gpu, "procs", list, sizeof list))
    for (char *one = strtok_r(list, ",", &save); one; one = strtok_r(0, ",", &save)) {
      process row = {0, 0, ~0u, ~0u};
      if (sscanf(one, "%u:%llu", &row.pid, &row.used) < 1) continue;
      if (out && found < room) out[found] = row;
      found++;
    }
  *count = found;
  return found > room ? TOO_SMALL : OK;
}

/* ---- fields, links, fabric, pairs ---- */
typedef struct { u32 id, scope; int64_t t, latency; u32 type; result code; union { double d; u64 ull; } value; } field;
result nvmlDeviceGetFieldValues(void *handle, int count, field *fields) {
  GPU(handle);
  for (int i = 0; i < count; i++) {
    char key[64], value[64];
    if (fields[i].id >= 161 && fields[i].id <= 222) snprintf(key, sizeof key, "field.%u.%u", fields[i].id, fields[i].scope);
    else snprintf(key, sizeof key, "field.%u", fields[i].id);
    fields[i].latency = 1;
    fields[i].type = 3;
    fields[i].code = find_of(gpu, key, value, sizeof value) ? OK : fields[i].id >= 161 && fields[i].id <= 163 ? OK : UNSUPPORTED;
    fields[i].value.ull = 0;
    if (find_of(gpu, key, value, sizeof value)) fields[i].value.ull = strtoull(value, 0, 0);
    else if (fields[i].id == 230 && !number("old_driver", 0)) fields[i].code = OK;
  }
  return OK;
}
result nvmlDeviceGetNvLinkState(void *handle, u32 link, u32 *out) {
  GPU(handle);
  if (link >= number_of(gpu, "nvlinks", 18)) return number_of(gpu, "nvlinks", 18) ? INVALID : UNSUPPORTED;
  *out = (u32)numbered(gpu, "nvlink.%u", link, 1);
  return OK;
}
result nvmlDeviceGetNvLinkErrorCounter(void *handle, u32 link, u32 counter, u64 *out) {
  GPU(handle);
  char key[64];
  snprintf(key, sizeof key, "nvlink.%u.counter.%u", link, counter);
  *out = number_of(gpu, key, 0);
  return OK;
}
typedef struct { u32 version; uint8_t uuid[16]; result status; u32 clique, state, mask; uint8_t summary; } fabric;
result nvmlDeviceGetGpuFabricInfoV(void *handle, fabric *out) {
  GPU(handle);
  u32 version = out->version >> 24;
  if (version > number("fabric_version", 3)) return OLD_STRUCT;
  out->status = (result)number_of(gpu, "fabric_status", 0);
  out->state = (u32)number_of(gpu, "fabric_state", 3);
  out->mask = (u32)number_of(gpu, "fabric_mask", 0);
  if (version >= 3) out->summary = (uint8_t)number_of(gpu, "fabric_summary", 1);
  return OK;
}
static u64 of_pair(u32 a, u32 b, const char *what, u64 otherwise) {
  char key[64];
  snprintf(key, sizeof key, "pair.%u.%u.%s", a < b ? a : b, a < b ? b : a, what);
  return number(key, otherwise);
}
result nvmlDeviceGetTopologyCommonAncestor(void *handle, void *other, u32 *out) {
  GPU(handle);
  *out = (u32)of_pair(gpu, (u32)(uintptr_t)other - 1, "level", 20);
  return OK;
}
result nvmlDeviceGetP2PStatus(void *handle, void *other, int kind, u32 *out) {
  GPU(handle);
  *out = (u32)of_pair(gpu, (u32)(uintptr_t)other - 1, kind == 2 ? "nvlink" : "read", 0);
  return OK;
}

/* ---- events ---- */
typedef struct { void *device; u64 type, data; u32 instance, compute; } event;
result nvmlEventSetCreate(void **set) { note("EventSetCreate"); *set = (void *)1; return opened ? OK : UNINITIALIZED; }
result nvmlEventSetFree(void *set) { note("EventSetFree"); (void)set; return OK; }
result nvmlDeviceGetSupportedEventTypes(void *handle, u64 *out) { GPU(handle); *out = number_of(gpu, "event_types", 0x1b); return OK; }
result nvmlDeviceRegisterEvents(void *handle, u64 wanted, void *set) {
  GPU(handle);
  (void)set;
  return wanted & ~number_of(gpu, "event_types", 0x1b) ? UNSUPPORTED : OK;
}
result nvmlEventSetWait_v2(void *set, event *out, u32 ms) {
  (void)set;
  for (u32 waited = 0;; waited += 20) {
    char list[4096], *save;
    u64 at = 0;
    if (!opened) return UNINITIALIZED;
    if (find("events", list, sizeof list))
      for (char *one = strtok_r(list, ",", &save); one; one = strtok_r(0, ",", &save), at++) {
        u32 gpu;
        u64 type, data;
        if (at < events_seen || sscanf(one, "%u:%llu:%llu", &gpu, &type, &data) != 3) continue;
        events_seen = at + 1;
        *out = (event){(void *)(uintptr_t)(gpu + 1), type, data, ~0u, ~0u};
        return OK;
      }
    if (waited >= ms) return TIMEOUT;
    doze(20);
  }
}
